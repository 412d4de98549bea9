"""Starts the ranks of a torch benchmark, one Python process each, and returns the output of rank 0."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.points import Point, parse_point

_ROOT = Path(__file__).resolve().parents[2]
_TORCH_WARNING = re.compile(r"(\[rank\d+\]:)?\[?W\d{4} ")


def run_torch_ranks(module: str, settings: Mapping[str, Any], *, num_ranks: int, time_limit_s: int) -> str:
    """Runs all ranks to their end.

    Args:
        module: started with one argument, a JSON object: ``settings`` with ``rank``, ``ranks`` and ``store``, the file
            of the ranks' rendezvous.
        settings: the same for all ranks.
        num_ranks: number of processes.
        time_limit_s: limit of the whole run.
    Raises:
        BenchmarkError: a rank failed or the time is over.
    """
    print(f"{num_ranks} ranks: starting python", flush=True)
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        processes = []
        try:
            for rank in range(num_ranks):
                argument = json.dumps({**settings, "rank": rank, "ranks": num_ranks, "store": f"{folder}/store"})
                own = Path(folder) / str(rank)
                with own.with_suffix(".out").open("w") as output, own.with_suffix(".err").open("w") as errors:
                    processes.append(_start([sys.executable, "-m", module, argument], output, errors))
            _wait(processes, Path(folder), time_limit_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return (Path(folder) / "0.out").read_text()


def measure_torch_ranks(
    module: str, settings: Mapping[str, Any], *, num_ranks: int, time_limit_s: int, reference: str
) -> list[Point]:
    """Returns the points that rank 0 printed, each with its ``round``, combined over rounds.

    Args:
        reference: ratios compare with this system.
    Raises:
        BenchmarkError: see ``run_torch_ranks()``.
    """
    rounds = run_torch_rounds(module, settings, num_ranks=num_ranks, time_limit_s=time_limit_s)
    return combine_rounds(rounds, reference=reference)


def run_torch_rounds(
    module: str, settings: Mapping[str, Any], *, num_ranks: int, time_limit_s: int
) -> list[list[Point]]:
    """Returns the points that rank 0 printed, grouped by their ``round``.

    Raises:
        BenchmarkError: see ``run_torch_ranks()``.
    """
    by_round: dict[int, list[Point]] = defaultdict(list)
    for line in run_torch_ranks(module, settings, num_ranks=num_ranks, time_limit_s=time_limit_s).splitlines():
        if line.startswith("{"):
            point = parse_point(line)
            by_round[point.extra.pop("round")].append(point)
    return [by_round[index] for index in sorted(by_round)]


def _start(command: Sequence[str], output: IO[str], errors: IO[str]) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    # Without it, Gloo looks up the host's name, which not every container can resolve.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
    return subprocess.Popen(command, stdout=output, stderr=errors, env=environment)


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, time_limit_s: int) -> None:
    deadline = time.monotonic() + time_limit_s
    while True:
        is_running = any(process.poll() is None for process in processes)
        # Report the first rank to fail: others may fail because of it.
        failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
        if failed or not is_running or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if failed:
        reasons = [f"rank {rank} failed: {_reason_in((folder / f'{rank}.err').read_text())}" for rank in failed]
        raise BenchmarkError("; ".join(reasons))
    if is_running:
        raise BenchmarkError(f"the ranks took longer than {time_limit_s} s")


def _reason_in(errors: str) -> str:
    """Returns the last line that is not a torch warning: NCCL groups warn after the exception that ends a process."""
    lines = [line for line in errors.splitlines() if line.strip() and not _TORCH_WARNING.match(line)]
    return lines[-1] if lines else "no message"
