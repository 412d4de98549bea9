# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a torch benchmark, and returns the output of rank 0."""

from __future__ import annotations

import importlib
import io
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import combine_rounds
from benchmarks.harness.points import Point, parse_point


def run_torch_ranks(module: str, settings: Mapping[str, Any], *, num_ranks: int, time_limit_s: int) -> str:
    """Runs all ranks to their end, in a default group over Gloo; returns what rank 0 printed.

    Args:
        module: has ``main(fields)``, which a rank calls with ``settings``, ``rank`` and ``ranks``.
        settings: the same for all ranks, among them ``timeout_s``, the limit of a wait for another rank.
        num_ranks: number of processes.
        time_limit_s: limit of the whole run.
    Raises:
        BenchmarkError: a rank failed or the time is over.
    """
    from headway.comm.rank_processes import RankFailedError, run_ranks  # imports torch

    print(f"{num_ranks} ranks: starting python", flush=True)
    # Without it, Gloo looks up the host's name, which not every container can resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        return run_ranks(
            partial(_run_rank, module=module, settings=settings, num_ranks=num_ranks),
            num_ranks=num_ranks,
            timeout_s=time_limit_s,
            backend="gloo",
            wait_s=settings["timeout_s"],
        )
    except RankFailedError as error:
        raise BenchmarkError(str(error)) from None


def _run_rank(rank: int, send: object, *, module: str, settings: Mapping[str, Any], num_ranks: int) -> str:
    """Runs ``module`` and returns what it printed. ``send``, which sends objects to the launcher, is not used."""
    with redirect_stdout(io.StringIO()) as printed:
        importlib.import_module(module).main({**settings, "rank": rank, "ranks": num_ranks})
    return printed.getvalue()


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
