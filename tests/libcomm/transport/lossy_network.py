# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by a link that delays and loses packets.

``tc netem`` emulates the link if the kernel has it. Otherwise each namespace gets a TAP device, and a thread of the
test carries the frames between them. Both need root or its capabilities; :class:`NotPermittedError` names the missing
one.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_MAX_FRAME_BYTES = 65536


class NotPermittedError(Exception):
    """The host or container does not allow an operation that the network needs."""


class Link(Protocol):
    """Link between the two namespaces."""

    kind: str

    def cut(self) -> None:
        """Drops all packets from now on, without telling either side."""


@dataclass(frozen=True, kw_only=True)
class LossyNetwork:
    """Two namespaces and their link. Addresses are (IPv4, IPv6) by namespace."""

    namespaces: tuple[str, str]
    addresses: tuple[tuple[str, str], tuple[str, str]]
    link: Link

    def command_in(self, side: int, command: list[str]) -> list[str]:
        """Returns the command line that runs ``command`` inside namespace ``side``."""
        return ["ip", "netns", "exec", self.namespaces[side], *command]


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if result.returncode != 0:
        raise NotPermittedError(f"'{' '.join(command)}': {result.stderr.strip()}")


class _NetemLink:
    kind = "netem"

    def __init__(self, namespaces: tuple[str, str], devices: tuple[str, str], *, delay_ms: float, loss: float) -> None:
        self._ends = list(zip(namespaces, devices, strict=True))
        _run("ip", "link", "add", devices[0], "netns", namespaces[0], "type", "veth", "peer", "name", devices[1],
             "netns", namespaces[1])  # fmt: skip
        for namespace, device in self._ends:
            _run("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "netem", "limit",
                 "100000", "delay", f"{delay_ms}ms", "loss", f"{100 * loss}%")  # fmt: skip

    def cut(self) -> None:
        for namespace, device in self._ends:
            _run(
                "ip",
                "netns",
                "exec",
                namespace,
                "tc",
                "qdisc",
                "change",
                "dev",
                device,
                "root",
                "netem",
                "loss",
                "100%",
            )

    def close(self) -> None:
        """Does nothing: the devices go with their namespaces."""


class _RelayLink:
    kind = "relay"

    def __init__(self, namespaces: tuple[str, str], devices: tuple[str, str], *, delay_ms: float, loss: float) -> None:
        self._delay_s = delay_ms / 1000
        self._loss = loss
        self._taps: list[int] = []
        for namespace, device in zip(namespaces, devices, strict=True):
            try:
                tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._taps.append(tap)
                fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
            except OSError as error:
                self._close_taps()
                raise NotPermittedError(f"/dev/net/tun: {error}") from error
            _run("ip", "link", "set", device, "netns", namespace)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="relay", daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        chance = random.Random(1)
        order = itertools.count()
        under_way: list[tuple[float, int, int, bytes]] = []  # (due, order, tap, frame)
        while True:
            timeout = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            readable, _, _ = select.select([*self._taps, self._stop_read], [], [], timeout)
            if self._stop_read in readable:
                return
            now = time.monotonic()
            for source in readable:
                with contextlib.suppress(OSError):  # The device is not up yet, or no longer up.
                    while frame := os.read(source, _MAX_FRAME_BYTES):
                        if chance.random() >= self._loss:
                            target = self._taps[1] if source == self._taps[0] else self._taps[0]
                            heapq.heappush(under_way, (now + self._delay_s, next(order), target, frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(under_way)
                with contextlib.suppress(OSError):
                    os.write(target, frame)

    def cut(self) -> None:
        self._loss = 1.0

    def close(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()
        self._close_taps()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _close_taps(self) -> None:
        for tap in self._taps:
            os.close(tap)


def _make_link(namespaces: tuple[str, str], *, delay_ms: float, loss: float) -> _NetemLink | _RelayLink:
    devices = ("hw0", "hw1")
    try:
        return _NetemLink(namespaces, devices, delay_ms=delay_ms, loss=loss)
    except NotPermittedError as no_netem:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "exec", namespace, "ip", "link", "del", devices[0]], capture_output=True)
        try:
            return _RelayLink(namespaces, devices, delay_ms=delay_ms, loss=loss)
        except NotPermittedError as no_relay:
            raise NotPermittedError(f"neither netem ({no_netem}) nor TAP devices ({no_relay}) are to be had") from None


@contextlib.contextmanager
def lossy_network(*, delay_ms: float, loss: float) -> Iterator[LossyNetwork]:
    """Makes the namespaces and the link, and removes them at the end.

    Args:
        delay_ms: delay of each direction.
        loss: fraction of packets that are lost, 0 to 1.
    Raises:
        NotPermittedError: naming the command or device that was refused.
    """
    namespaces = (f"headway-{os.getpid()}-0", f"headway-{os.getpid()}-1")
    addresses = (("10.83.7.1", "fd83:7::1"), ("10.83.7.2", "fd83:7::2"))
    link: _NetemLink | _RelayLink | None = None
    try:
        try:
            for namespace in namespaces:
                _run("ip", "netns", "add", namespace)
        except FileNotFoundError as error:
            raise NotPermittedError(f"iproute2 is not installed: {error}") from error
        link = _make_link(namespaces, delay_ms=delay_ms, loss=loss)
        for side, namespace in enumerate(namespaces):
            inside = ("ip", "netns", "exec", namespace, "ip")
            _run(*inside, "address", "add", f"{addresses[side][0]}/24", "dev", f"hw{side}")
            _run(*inside, "address", "add", f"{addresses[side][1]}/64", "dev", f"hw{side}", "nodad")
            _run(*inside, "link", "set", f"hw{side}", "up")
            _run(*inside, "link", "set", "lo", "up")
        yield LossyNetwork(namespaces=namespaces, addresses=addresses, link=link)
    finally:
        if link is not None:
            link.close()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
