# SPDX-License-Identifier: Apache-2.0
"""Ranks in two network namespaces whose link delays and loses packets: exchanges, both address families, a cut link."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.emulated_network import Conditions, EmulatedNetwork, NotPermittedError, emulated_network

_ROOT = Path(__file__).resolve().parents[3]
_BUILD = Path(os.environ.get("HEADWAY_TEST_BUILD_DIR", _ROOT / "build"))
_RANK = _BUILD / "tests/libcomm/libcomm_exchange_process"
_NUM_RANKS = 4  # Ranks 0 and 1 are in one namespace, 2 and 3 in the other.


@pytest.fixture
def network() -> Iterator[EmulatedNetwork]:
    if not _RANK.exists():
        pytest.skip(f"{_RANK.relative_to(_ROOT) if _RANK.is_relative_to(_ROOT) else _RANK} is not built")
    try:
        with emulated_network(2, Conditions(delay_ms=5, loss=0.01)) as made:
            yield made
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces with a lossy link here: {error}")


class _Ranks:
    """Processes of one run. They are killed at the end in any case.

    ``family`` is 0 for IPv4, 1 for IPv6, None for any address. An exchange is one all-to-all. Its blocks are the
    messages from one rank to another; ``bytes_`` is the size of the largest. ``max_lag`` is the number of exchanges by
    which a rank may run ahead. ``count`` is the number of exchanges; 0: endless.
    """

    def __init__(
        self,
        network: EmulatedNetwork,
        store: Path,
        *,
        transport: str,
        family: int | None,
        bytes_: int,
        max_lag: int,
        count: int,
    ) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(_NUM_RANKS):
            side = rank // 2
            address = "-" if family is None else network.addresses[side][family]
            command = [str(_RANK), str(rank), str(_NUM_RANKS), str(store), transport, address]
            command += [str(bytes_), str(max_lag), str(count)]
            self.processes.append(
                subprocess.Popen(network.command_in(side, command), stdout=subprocess.PIPE, text=True)
            )

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def await_line(self, rank: int, start: str) -> str:
        """Returns the next line of ``rank`` that begins with ``start``. An unexpected failure ends the test."""
        stdout = self.processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith(start):
                return line.rstrip()
            assert not line.startswith("failed:"), f"rank {rank} {line}"
        raise AssertionError(f"rank {rank} ended without '{start}'")


@pytest.mark.parametrize(
    ("transport", "family", "transports_of_rank_0"),
    [
        ("auto", None, "transports: shm tcp tcp"),
        ("tcp", 0, "transports: tcp tcp tcp"),
        ("tcp", 1, "transports: tcp tcp tcp"),
    ],
    ids=["auto", "tcp_ipv4", "tcp_ipv6"],
)
def test_exchanges_survive_delay_and_loss(
    network: EmulatedNetwork, tmp_path: Path, transport: str, family: int | None, transports_of_rank_0: str
) -> None:
    with _Ranks(network, tmp_path, transport=transport, family=family, bytes_=60_000, max_lag=2, count=30) as ranks:
        assert ranks.await_line(0, "transports:") == transports_of_rank_0
        for rank in range(_NUM_RANKS):
            ranks.await_line(rank, "done")


def test_a_host_that_vanishes_is_noticed_though_nothing_is_closed(network: EmulatedNetwork, tmp_path: Path) -> None:
    with _Ranks(network, tmp_path, transport="auto", family=None, bytes_=2_000, max_lag=0, count=0) as ranks:
        for rank in range(_NUM_RANKS):
            ranks.await_line(rank, "ready")
        network.cut()
        start = time.monotonic()
        for rank in range(_NUM_RANKS):
            line = ranks.await_line(rank, "failed:")
            assert "rank" in line, line
        # A peer counts as lost after 10 s without an answer, checked every 5 s.
        assert time.monotonic() - start < 40
