# SPDX-License-Identifier: Apache-2.0
"""The embedding workers of a job, which come and go, as one process sees them.

Example: the configuration has ``workers.discover = "ctr-worker:7100"``, and that name has the addresses A and B. A
loader sends its batches to A and B in turn. Then C starts, and the name gets its address. Within
``workers.refresh_s`` the loader finds it, and sends it every third batch. A reference to a batch has the address of its
worker, so the dense worker that gets the first one of C connects with C.

B gets SIGTERM. It refuses the next batch of the loader, which sends it to C instead, and B no more. B ends when dense
workers have fetched its batches and returned the gradients. If it came back under the same address, the loader would
find it.

Invariant: a batch is sent to another worker only if the first one has refused it or is lost. So no batch is trained
twice, and one whose worker is lost is missed by its dense worker.
"""

from __future__ import annotations

import socket
import time

from headway._hybrid import EmbeddingWorkers
from headway.hybrid.config import HybridConfig

_RETRY_S = 0.2  #: Between looks for the first worker.
_NEW_WORKER_S = 1.0  #: Time for a connection with a worker that may not be there.


def find_workers(config: HybridConfig) -> list[str]:
    """Returns the addresses of embedding workers at present: those of the configuration, or of its DNS name.

    Raises:
        OSError: the name has no address.
    """
    if not config.workers.discover:
        return list(config.workers.addresses)
    host, _, port = config.workers.discover.rpartition(":")
    found = socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return sorted({f"{address[0]!s}:{port}" for *_, address in found})


class WorkerMembers:
    """Connections of this process with embedding workers.

    Args:
        config: where they are, and limits of time.
        workers: makes the connections.
    Raises:
        RuntimeError: no worker can be reached within ``job.connect_timeout_s``, or one that the configuration names.
    """

    def __init__(self, config: HybridConfig, workers: EmbeddingWorkers) -> None:
        self._config = config
        self.workers = workers
        self._found: list[str] = []
        self._look_again = 0.0  #: On the monotonic clock.
        if config.workers.discover:
            self.expect_one()
        else:
            self._found = find_workers(config)
            for address in self._found:
                self.connect(address)
            self._set_clock()

    def connect(self, address: str, *, timeout_s: float | None = None) -> None:
        """Connects with a worker unless there is a connection.

        Raises:
            RuntimeError: it cannot be reached in time, or has other tables.
        """
        if address in self.workers.addresses():
            return
        limit_s = self._config.job.connect_timeout_s if timeout_s is None else timeout_s
        self.workers.connect(address, name=self.name_of(address), connect_timeout_s=limit_s)

    def name_of(self, address: str) -> str:
        """Returns the name of a worker in errors."""
        of_config = self._config.workers.addresses
        index = f"{of_config.index(address)} " if address in of_config else ""
        return f"embedding worker {index}at {address}"

    def expect_one(self) -> None:
        """Waits until there is a connection.

        Raises:
            RuntimeError: there is none within ``job.connect_timeout_s``.
        """
        until = time.monotonic() + self._config.job.connect_timeout_s
        while not self.workers.addresses():
            why = self._look()
            if self.workers.addresses():
                return
            if time.monotonic() >= until:
                raise RuntimeError(f"no embedding worker can be reached: {why or 'all have left'}")
            time.sleep(_RETRY_S)

    def in_turn(self, number: int) -> str:
        """Returns the address of the worker that gets batch ``number`` of a loader.

        Raises:
            RuntimeError: all have left, and no other one can be reached in time.
        """
        if time.monotonic() >= self._look_again:
            self._look()
        self.expect_one()
        connected = self.workers.addresses()
        order = [each for each in self._found if each in connected] or connected
        return order[number % len(order)]

    def _look(self) -> str:
        """Connects with workers that have come; returns why one could not be reached."""
        self._set_clock()
        try:
            self._found = find_workers(self._config)
        except OSError as error:
            return f"{self._config.workers.discover} has no address ({error})"
        why = ""
        for address in self._found:
            try:
                self.connect(address, timeout_s=min(_NEW_WORKER_S, self._config.job.connect_timeout_s))
            except RuntimeError as error:  # It may be about to start, or to end.
                why = str(error)
        return why

    def _set_clock(self) -> None:
        self._look_again = time.monotonic() + self._config.workers.refresh_s
