"""Servers of this machine that speak the protocols of S3 and of Google's storage."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# of each kind: the driver of fsspec, and the server
PACKAGES = {"s3": ("s3fs", "moto"), "gs": ("gcsfs", "gcp_storage_emulator")}


@contextmanager
def opened(kind: str) -> Iterator[Any]:
    """A context with a file system of fsspec, which has an empty bucket named ``bucket``."""
    import fsspec

    with {"s3": _s3, "gs": _gs}[kind](fsspec.config.conf):
        system = fsspec.filesystem(kind)
        system.mkdir("bucket")
        yield system


@contextmanager
def _s3(settings: dict[str, Any]) -> Iterator[None]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    settings["s3"] = {"endpoint_url": f"http://{host}:{port}"}
    try:
        yield
    finally:
        server.stop()


@contextmanager
def _gs(settings: dict[str, Any]) -> Iterator[None]:
    from gcp_storage_emulator.server import create_server

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        # the driver would ask the real service by gRPC which kind of bucket this is
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    settings["gs"] = {"token": "anon", "project": "none"}
    with create_server("127.0.0.1", port, in_memory=True):
        yield
