"""Which addresses are this machine's, as the kernel says (proc_net(5))."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def is_elsewhere(address: str) -> bool:
    """Whether an IP address is certainly one of another machine.

    >>> is_elsewhere("127.0.0.1"), is_elsewhere("198.51.100.7"), is_elsewhere("node7")
    (False, True, False)
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:  # a name, which several machines may have
        return False
    own = _own()
    return bool(own) and not found.is_loopback and found not in own


def _own() -> set[IPv4Address | IPv6Address]:
    """Empty if the kernel does not say."""
    try:
        four = Path("/proc/net/fib_trie").read_text()
        six = Path("/proc/net/if_inet6").read_text()
    except OSError:
        return set()
    found = {ip_address(each) for each in _LOCAL.findall(four)}
    return found | {ip_address(int(line.split()[0], 16)) for line in six.splitlines()}
