# SPDX-License-Identifier: Apache-2.0
"""Finds and starts the C++ benchmark programs, alone or under mpirun, and reads the points they print."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.process_tree import run_process_tree

HEADWAY = "headway"
OPENMPI = "openmpi"

_ROOT = Path(__file__).resolve().parents[2]
_FILES = {HEADWAY: "bench_all_to_all_headway", OPENMPI: "bench_all_to_all_mpi"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Start options of the ranks of a run.

    Attributes:
        ranks: number of processes.
        cores: processors that all ranks share; None: all that this process may use.
        bind: pin each rank to a core of its own. Needs at least as many cores as ranks.
        yield_when_idle: Open MPI gives up its core while it waits. No effect on Headway.
    """

    ranks: int
    cores: frozenset[int] | None = None
    bind: bool = True
    yield_when_idle: bool = False


class Programs:
    """The built programs of one folder."""

    def __init__(self, folder: Path | None, *, use_mpirun: bool = True) -> None:
        """Looks for the programs.

        Args:
            folder: folder of the programs; None: the output folder of this checkout's ``make build``.
            use_mpirun: start Headway's ranks by mpirun too if it is there, so that both systems are placed alike.
        Raises:
            BenchmarkError: the program for Headway is missing.
        """
        self._folder = folder if folder is not None else _ROOT / "build" / "benchmarks" / "all_to_all"
        self._mpirun = shutil.which("mpirun")
        self._use_mpirun = use_mpirun and self._mpirun is not None
        if not self._path(HEADWAY).is_file():
            raise BenchmarkError(f"{self._path(HEADWAY)} is not there: `make build` in a checkout, or give --programs")

    def has(self, system: str) -> bool:
        """Whether ``system`` was built and can be started."""
        return self._path(system).is_file() and (system == HEADWAY or self._mpirun is not None)

    def run(self, system: str, arguments: Sequence[str], launch: Launch, *, timeout_s: float = 300) -> list[Point]:
        """Starts all ranks, waits for their end and returns the points that rank 0 printed.

        Raises:
            BenchmarkError: a rank failed, gave a wrong result or took too long.
        """
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as store:
            command = [*self._launcher(system, launch, store), *arguments, "--time-limit", str(int(timeout_s))]
            return [parse_point(line) for line in _run(command, launch, timeout_s).splitlines() if line.startswith("{")]

    def _path(self, system: str) -> Path:
        return self._folder / _FILES[system]

    def _launcher(self, system: str, launch: Launch, store: str) -> list[str]:
        program = str(self._path(system))
        crowded = launch.ranks > num_cores(launch.cores)
        bind = launch.bind and not crowded
        if system == HEADWAY and not self._use_mpirun:
            return [program, "--ranks", str(launch.ranks), *(["--bind"] if bind else [])]
        if self._mpirun is None:
            raise BenchmarkError("mpirun is not in PATH (Debian, Ubuntu: openmpi-bin)")
        placement = ["--bind-to", "core" if bind else "none", *(["--oversubscribe"] if crowded else [])]
        yielding = ["--mca", "mpi_yield_when_idle", "1"] if launch.yield_when_idle else []
        ranks = ["-n", str(launch.ranks)]
        return [self._mpirun, *ranks, *placement, *yielding, program, "--store", f"{store}/ranks"]


def num_cores(cpus: frozenset[int] | None = None) -> int:
    """Counts the cores among ``cpus`` (None: those this process may use). Hardware threads of a core count once."""
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    siblings = set()
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text().strip() if path.exists() else str(cpu))
    return len(siblings)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


def _run(command: list[str], launch: Launch, timeout_s: float) -> str:
    if launch.cores is not None:
        command = ["taskset", "-c", ",".join(map(str, sorted(launch.cores))), *command]
    # The program gets the same limit by --time-limit. It ends earlier, with a message that says more.
    finished = run_process_tree(command, timeout_s=timeout_s + 20, environment=_environment())
    if finished.returncode != 0:
        problem = _first_error(finished.stderr)
        raise BenchmarkError(f"{' '.join(command)}: exit status {finished.returncode}: {problem}")
    return finished.stdout


def _first_error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("rank ", "bench_"))]
    return (ours or lines or ["no message"])[0]
