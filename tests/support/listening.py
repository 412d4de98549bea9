"""Addresses at which this process listens, as the kernel reports them."""

from __future__ import annotations

import os
import pathlib
import socket


def listening_addresses() -> set[str]:
    """Numeric IPv4 and IPv6 addresses at which this process listens."""
    sockets = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_socket(fd)}
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in pathlib.Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] != "0A" or f"socket:[{columns[9]}]" not in sockets:
                continue
            words = bytes.fromhex(columns[1].split(":")[0])
            packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
            found.add(socket.inet_ntop(family, packed))
    return found


def is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False  # The descriptor of the listing itself.
