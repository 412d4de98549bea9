# SPDX-License-Identifier: Apache-2.0
"""Lets systems take turns: every round runs each of them once, in alternating order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.programs import HEADWAY, Programs


def choose_systems(programs: Programs, against: str | None, default: str) -> list[str]:
    """Returns Headway and the system that it is compared with.

    Args:
        programs: the programs that can be started.
        against: the user's choice. None: ``default`` if it can be run; otherwise a note says that it cannot.
        default: the system to compare with if the user chose none.
    Raises:
        BenchmarkError: the user's choice cannot be run.
    """
    wanted = default if against is None else against
    if wanted == "none":
        return [HEADWAY]
    if programs.has(wanted):
        return [HEADWAY, wanted]
    problem = f"{wanted} is not there: install libopenmpi-dev and openmpi-bin, then build again"
    if against is not None:
        raise BenchmarkError(problem)
    print(f"note: {problem}; measuring Headway alone")
    return [HEADWAY]


def take_turns(
    systems: Sequence[str], num_rounds: int, run: Callable[[str], list[Point]], *, title: str
) -> list[list[Point]]:
    """Returns the points of each round. ``run(system)`` measures one system once."""
    rounds = []
    for index in range(num_rounds):
        started = time.monotonic()
        points: list[Point] = []
        for system in systems if index % 2 == 0 else reversed(systems):
            points += run(system)
        rounds.append(points)
        print(f"{title}: round {index + 1} of {num_rounds} in {time.monotonic() - started:.1f} s", flush=True)
    return rounds
