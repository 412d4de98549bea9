# SPDX-License-Identifier: Apache-2.0
"""Network namespaces as hosts, joined by a switch with a delay, a rate and losses.

Each namespace has a TAP device. A thread of this process carries the frames between them, so no module of the kernel
is needed. It takes root or its capabilities; :class:`NotPermittedError` names the missing one.

Frames of up to 60,000 bytes keep the thread's work small. Messages of 1 MiB went through it at 870
MB/s on two cores, so a rate below half of that is the network's and not the thread's.
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

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_MAX_FRAME_BYTES = 65536
_MOST_WAITING_BYTES = 256 << 20  #: Frames beyond it are lost, as in a full switch.


class NotPermittedError(Exception):
    """The host or container does not allow an operation that the network needs."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Delay, rate and loss of frames.

    Attributes:
        delay_ms: of each direction.
        rate: bytes a second that a host can send, and as many that it can receive; None: no limit.
        loss: fraction of frames that are lost, 0 to 1.
    """

    delay_ms: float = 0.0
    rate: float | None = None
    loss: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EmulatedNetwork:
    """Namespaces and their switch. Addresses are (IPv4, IPv6) by host."""

    namespaces: tuple[str, ...]
    addresses: tuple[tuple[str, str], ...]
    switch: Switch

    def command_in(self, host: int, command: list[str]) -> list[str]:
        """Returns the command line that runs ``command`` on a host."""
        return ["ip", "netns", "exec", self.namespaces[host], *command]

    def cut(self) -> None:
        """Drops all frames from now on, without telling anybody."""
        self.switch.conditions = Conditions(loss=1.0)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if result.returncode != 0:
        raise NotPermittedError(f"'{' '.join(command)}': {result.stderr.strip()}")


class Switch:
    """Carries frames between TAP devices, one for each namespace.

    A frame leaves once the frames before it have left its sender and have been received by its target, and arrives
    ``delay_ms`` later. Targets are learned from the addresses of senders; a frame to an unknown one goes to all.
    """

    def __init__(self, namespaces: tuple[str, ...], conditions: Conditions) -> None:
        self.conditions = conditions
        self._taps: list[int] = []
        for host, namespace in enumerate(namespaces):
            device = f"hw{host}"
            try:
                tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._taps.append(tap)
                fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI))
            except OSError as error:
                self._close_taps()
                raise NotPermittedError(f"/dev/net/tun: {error}") from error
            _run("ip", "link", "set", device, "netns", namespace)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="switch", daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        chance = random.Random(1)
        order = itertools.count()
        under_way: list[tuple[float, int, int, bytes]] = []  # (due, order, tap, frame)
        waiting_bytes = 0
        tap_of: dict[bytes, int] = {}  # By hardware address.
        free_at = dict.fromkeys(itertools.product(self._taps, ("send", "receive")), 0.0)
        while True:
            timeout = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            readable, _, _ = select.select([*self._taps, self._stop_read], [], [], timeout)
            if self._stop_read in readable:
                return
            conditions = self.conditions
            for source in readable:
                frame = b""
                with contextlib.suppress(OSError):  # The device is not up yet, no longer up, or has no more frames.
                    frame = os.read(source, _MAX_FRAME_BYTES)
                if not frame or chance.random() < conditions.loss or waiting_bytes > _MOST_WAITING_BYTES:
                    continue
                tap_of[frame[6:12]] = source
                known = tap_of.get(frame[:6])
                for target in [known] if known is not None else [tap for tap in self._taps if tap != source]:
                    leaves = max(time.monotonic(), free_at[source, "send"], free_at[target, "receive"])
                    if conditions.rate is not None:
                        leaves += len(frame) / conditions.rate
                        free_at[source, "send"] = free_at[target, "receive"] = leaves
                    heapq.heappush(under_way, (leaves + conditions.delay_ms / 1000, next(order), target, frame))
                    waiting_bytes += len(frame)
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, target, frame = heapq.heappop(under_way)
                waiting_bytes -= len(frame)
                with contextlib.suppress(OSError):
                    os.write(target, frame)

    def close(self) -> None:
        """Ends the thread and removes the devices."""
        os.write(self._stop_write, b"x")
        self._thread.join()
        self._close_taps()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _close_taps(self) -> None:
        for tap in self._taps:
            os.close(tap)


@contextlib.contextmanager
def emulated_network(num_hosts: int, conditions: Conditions, *, frame_bytes: int = 1500) -> Iterator[EmulatedNetwork]:
    """Makes namespaces and their switch, and removes them at the end.

    Args:
        num_hosts: 2 to 99.
        frame_bytes: largest frame (MTU), up to 60,000.
    Raises:
        NotPermittedError: naming the command or device that was refused.
    """
    namespaces = tuple(f"headway-{os.getpid()}-{host}" for host in range(num_hosts))
    addresses = tuple((f"10.83.7.{host + 1}", f"fd83:7::{host + 1}") for host in range(num_hosts))
    switch: Switch | None = None
    try:
        try:
            for namespace in namespaces:
                _run("ip", "netns", "add", namespace)
        except FileNotFoundError as error:
            raise NotPermittedError(f"iproute2 is not installed: {error}") from error
        switch = Switch(namespaces, conditions)
        for host, namespace in enumerate(namespaces):
            inside = ("ip", "netns", "exec", namespace, "ip")
            device = f"hw{host}"
            _run(*inside, "address", "add", f"{addresses[host][0]}/24", "dev", device)
            _run(*inside, "address", "add", f"{addresses[host][1]}/64", "dev", device, "nodad")
            _run(*inside, "link", "set", device, "mtu", str(frame_bytes))
            _run(*inside, "link", "set", device, "up")
            _run(*inside, "link", "set", "lo", "up")
        yield EmulatedNetwork(namespaces=namespaces, addresses=addresses, switch=switch)
    finally:
        if switch is not None:
            switch.close()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
