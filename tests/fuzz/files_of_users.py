"""Readers of what a user gives: configs, hosts, tables of `synk bench`."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from mutations import text_of
from strangers import Reader, Tree

import synkhronos as synk
from synkhronos.cli._run.hosts import listed_hosts
from synkhronos.cli._run.usage import UsageError
from synkhronos.cli._scaling import Measurement, curves_of, read_csv, write_csv
from synkhronos.training import config

ERRORS = (synk.InputError,)
CONFIG = """model = "mine:net"
optimizer = { name = "adam", rate = 1e-3 }
epochs = 3
batch = 64
base = "."
metrics = [ "accuracy" ]
[data]
train = [ "x.npy" , "y.npy" ]
classes = 10
split = 0.1
resize = [ 4 , 4 ]
[best]
metric = "val_loss"
[model_arguments]
a.b = 1979-05-27T07:32:00Z""".splitlines()
TOML = [
    "[[data]]",
    "[data]",
    "[a.b]",
    "{}",
    "[]",
    "inf",
    "nan",
    "-1",
    "1e999",
    "0x_1",
    "{a=1}",
    '"x"',
    "true",
    "1979-05-27",
    "1979-99-99",
    "3.0",
    "[1,'a',{b=2}]",
    "07:32:00",
    "data",
    "optimizer",
    "rate",
    "base",
    '"\\u0000"',
    "=3",
]
TOML += [
    "[" * 5000,
    "{a=" * 5000,
    "a." * 9000,
    "9" * 5000,
    '"' * 3,
    f'"{"a" * 5000}"',
    "epochs = 3",
]
TOML += [str(2**63), str(2**64), f"-{2**63 + 1}"]


def config_cases(canary: str) -> st.SearchStrategy[Tree]:
    return text_of(CONFIG, TOML).map(lambda text: {"a.toml": text})


def read_config(folder: Path) -> None:
    found = config.read(folder / "a.toml")
    assert config.config_of(found.table()) == found
    assert found.toml()


HOSTS = ("node1:4", "node2 slots=2 # fast", "# all", "node3", "node3")
HOST_WORDS = [
    "slots=",
    "slots=²",
    "slots=-1",
    "slots=0",
    "node1:²",
    "node1:x",
    "node1:\uff14",
    "node1:",
    ":",
    "::1",
    "[::1]",
    "-oX",
    "--",
    "a;b",
    "$(x)",
    "\x1b[2J",
    "node.1",
    "_a",
    "slots=" + "9" * 5000,
]


def host_cases(canary: str) -> st.SearchStrategy[Tree]:
    return text_of(HOSTS, HOST_WORDS).map(lambda text: {"hosts": text})


def read_hosts(folder: Path) -> None:
    import argparse

    from synkhronos.cli._run.plan import _hosts

    path = folder / "hosts"
    named, scheduler = _hosts(argparse.Namespace(hosts=None, hostfile=str(path)), {})
    assert not scheduler
    for host in named:
        assert host.name
        assert host.name[0].isalnum()
        assert host.members is None or host.members > 0
    listed_hosts(path.read_text(), str(path))


@functools.cache
def table() -> list[str]:
    measured = [
        Measurement("mine:f", "strong", 128, members, number, 128, 10, 1.0, 1280.0 * members)
        for members in (1, 2, 4)
        for number in (0, 1)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_csv(Path(folder) / "a.csv", measured)
        return (Path(folder) / "a.csv").read_text().replace(",", " , ").splitlines()


CELLS = [
    "0",
    "-1",
    "nan",
    "inf",
    "1e308",
    "1e-320",
    "9" * 400,
    "9" * 5000,
    '"',
    "1_0",
    "\xb2",
    ",",
    "",
]


def table_cases(canary: str) -> st.SearchStrategy[Tree]:
    return text_of(table(), CELLS).map(lambda text: {"a.csv": text.replace(b" ", b"")})


def read_table(folder: Path) -> None:
    curves = curves_of(read_csv(folder / "a.csv"))
    assert all(point.members > 0 for curve in curves for point in curve.points)
    assert all(curve.title for curve in curves)


def read_a_page_of_tables(folder: Path) -> None:
    from synkhronos.cli._report.page import page

    assert page([], curves_of(read_csv(folder / "a.csv")))


READERS = (
    Reader("configs", config_cases, read_config, "a.toml", ERRORS),
    Reader("hosts", host_cases, read_hosts, "hosts", (UsageError,)),
    Reader("tables", table_cases, read_table, "a.csv", ERRORS),
    Reader("page of tables", table_cases, read_a_page_of_tables, "a.csv", ERRORS, share=20),
)
