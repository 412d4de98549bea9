# SPDX-License-Identifier: Apache-2.0
"""Ranks that serve the DLRM, each a process of ``headway_serve``, and runs of ``headway_load`` against them."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.cli.built_programs import program_path

from benchmarks.harness.errors import BenchmarkError

START_S, _STOP_S = 120, 60  #: Limits of the start and of the end of all ranks.
_LEAST_ANSWERED = 0.99
BEYOND_LOAD_S = 120  #: Time of a run of the load generator beyond its ``--seconds``.


class Trial(NamedTuple):
    """One run of a load generator; its line of results, and the rate that was offered (0: a closed loop)."""

    offered: float
    result: dict[str, Any]

    @property
    def answered(self) -> float:
        """Share of the requests that were answered."""
        statuses = self.result["statuses"]
        return float(statuses.get("OK", 0) / max(1, sum(statuses.values())))

    def holds(self, p99_ms: float) -> bool:
        """Whether 99% of the requests were answered, and 99% of the answers came within ``p99_ms``."""
        return bool(self.answered >= _LEAST_ANSWERED and self.result["p99_ms"] <= p99_ms)


def expect_programs() -> None:
    """
    Raises:
        BenchmarkError: the programs are not built.
    """
    if not program_path("headway_serve").exists():
        raise BenchmarkError("headway_serve is not built, as gRPC was not found")


@contextlib.contextmanager
def serve_package(
    package: Path, num_ranks: int, options_of_rank: Sequence[Sequence[str]], *, cores: str = ""
) -> Iterator[list[str]]:
    """Starts all ranks. Yields their addresses.

    Args:
        package: an exported DLRM.
        num_ranks: number of processes.
        options_of_rank: options of ``headway_serve`` of each rank.
        cores: cores of all ranks, as for taskset; empty: all.
    Raises:
        BenchmarkError: a rank does not start.
    """
    ports = free_ports(num_ranks)
    with tempfile.TemporaryDirectory() as store, contextlib.ExitStack() as stack:
        ranks = []
        for rank, (port, words) in enumerate(zip(ports, options_of_rank, strict=True)):
            command = ["taskset", "-c", cores] if cores else []
            command += [str(program_path("headway_serve")), "--package", str(package), "--store", store]
            command += ["--rank", str(rank), "--size", str(num_ranks), "--address", f"127.0.0.1:{port}", *words]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(stop_rank, process)
            ranks.append(process)
        deadline = time.monotonic() + START_S
        for process in ranks:
            if " serves version " not in first_line(process, deadline):
                raise BenchmarkError(f"a rank did not start: {process.args!r}")
        with stopped_together(ranks):
            yield [f"127.0.0.1:{port}" for port in ports]


@contextlib.contextmanager
def stopped_together(ranks: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """Ends all ranks at once in the end, as a rank that drains waits for the others. ``stop_rank()`` waits for each."""
    try:
        yield
    finally:
        for process in ranks:
            process.send_signal(signal.SIGTERM)


def first_line(process: subprocess.Popen[str], deadline: float) -> str:
    """The first line that a process prints; empty if it ends or prints nothing by then."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
    return process.stdout.readline() if ready else ""


def stop_rank(process: subprocess.Popen[str]) -> None:
    """Waits for the end of a rank, and kills it if that takes too long."""
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def load_command(package: Path, addresses: Sequence[str], cores: str) -> list[str]:
    """First words of a command of the load generator; ``cores`` are its cores, as for taskset, and empty: all."""
    command = ["taskset", "-c", cores] if cores else []
    return [*command, str(program_path("headway_load")), "--package", str(package), "--address", ",".join(addresses)]


def run_load(
    package: Path,
    addresses: Sequence[str],
    words: Sequence[str],
    *,
    rows: str,
    num_ids: int,
    seconds: int,
    cores: str = "",
) -> Trial:
    """Runs the load generator once.

    Args:
        package: the served package.
        addresses: those of all ranks.
        words: more options of ``headway_load``: a rate, or a number of clients.
        rows: its ``--rows``.
        num_ids: its ``--ids``.
        seconds: its ``--seconds``.
        cores: cores of the load generator, as for taskset; empty: all.
    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "result.json"
        command = load_command(package, addresses, cores)
        command += ["--rows", rows, "--ids", str(num_ids), "--seconds", str(seconds), "--json", str(results), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + BEYOND_LOAD_S)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"headway_load did not end within {seconds + BEYOND_LOAD_S} s") from None
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip() or f"headway_load ended with {done.returncode}")
        result = json.loads(results.read_text())
        return Trial(float(result["offered_per_s"]), result)


def free_ports(count: int) -> list[int]:
    """Ports of this host on which nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def are_free(ports: Sequence[int]) -> bool:
    """Whether nobody listens at any of these ports of this host."""
    with contextlib.ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
