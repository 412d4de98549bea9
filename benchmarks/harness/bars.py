# SPDX-License-Identifier: Apache-2.0
"""Compares measured points with the bars of the project: the minimum ratio of a release, and the ratio aimed at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.points import Point, read_json_lines
from dlrm_examples.support.text_table import format_bytes, format_table

_JUDGED_RANKS = 8  #: Number of ranks of the all-to-alls that the bars judge.


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: compares ``value(point)`` of every point that ``applies`` with ``must`` and ``aim``.

    Attributes:
        what: name of the bar in the table.
        must: limit that a release has to meet; a ratio, unless ``value`` says otherwise.
        aim: limit that the project aims at; None if there is none.
        higher_is_better: a value meets a limit by reaching it; if False, by not exceeding it.
    """

    what: str
    must: float
    aim: float | None
    applies: Callable[[Point], bool]
    value: Callable[[Point], float | None] = lambda point: point.ratio
    higher_is_better: bool = True
    unit: str = "x"

    def meets(self, value: float, goal: float) -> bool:
        """Whether ``value`` is as good as ``goal``."""
        return value >= goal if self.higher_is_better else value <= goal


def _all_to_all(lowest_bytes: int, highest_bytes: int, split: str = "even") -> Callable[[Point], bool]:
    return lambda point: (
        point.name == "all_to_all"
        and point.system == "headway"
        and point.params["ranks"] == _JUDGED_RANKS
        and point.params["lag"] == 0
        and point.params["split"] == split
        and lowest_bytes <= point.params["bytes_per_rank"] <= highest_bytes
    )


def _named(name: str, system: str = "headway") -> Callable[[Point], bool]:
    return lambda point: point.name == name and point.system == system


def _sequence(point: Point) -> bool:
    return _named("sequence")(point) and point.params["calls"] == 10_000


def _torch(point: Point) -> bool:
    return _named("torch_all_to_all")(point) and point.params["bytes_per_rank"] <= 32 << 10


def _lag_cost(point: Point) -> bool:
    return _named("lag_cost")(point) and point.params["lag"] > 0


BARS = [
    Bar(what="all-to-all, 8 B to 512 B", must=3, aim=6, applies=_all_to_all(8, 512)),
    Bar(what="all-to-all, 4 and 32 KiB", must=1.8, aim=2.5, applies=_all_to_all(4 << 10, 32 << 10)),
    Bar(what="all-to-all, 256 KiB to 16 MiB", must=1.2, aim=1.8, applies=_all_to_all(256 << 10, 16 << 20)),
    Bar(what="all-to-all, 128 MiB and above", must=1, aim=1.4, applies=_all_to_all(128 << 20, 1 << 40)),
    Bar(what="10,000 calls in sequence", must=1.8, aim=2.5, applies=_sequence),
    Bar(what="zipf splits, every size", must=1, aim=2, applies=_all_to_all(0, 1 << 40, "zipf")),
    Bar(what="8 ranks on 2 cores", must=1, aim=None, applies=_named("oversubscribed")),
    Bar(what="idle ranks, share of a core", must=0.02, aim=None, applies=_named("idle"), value=lambda point: point.rate,
        higher_is_better=False, unit=""),
    Bar(what="torch all-to-all up to 32 KiB", must=5, aim=15, applies=_torch),
    Bar(what="bound k > 0 against k = 0, upper 95% of time ratio", must=1.03, aim=1.0, applies=_lag_cost,
        value=lambda point: point.extra.get("time_ratio_high"), higher_is_better=False),
]  # fmt: skip


def judge(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Returns rows of bar, point, must, aim, value and verdict. A bar without points has one row that says so."""
    rows: list[tuple[str, ...]] = []
    for bar in BARS:
        judged = [(point, value) for point in points if bar.applies(point) and (value := bar.value(point)) is not None]
        aim = "" if bar.aim is None else f"{bar.aim:g}{bar.unit}"
        if not judged:
            rows.append((bar.what, "", f"{bar.must:g}{bar.unit}", aim, "", "not measured"))
        for point, value in judged:
            verdict = "missed" if not bar.meets(value, bar.must) else "must"
            if bar.aim is not None and bar.meets(value, bar.aim):
                verdict = "aim"
            rows.append((bar.what, _describe(point), f"{bar.must:g}{bar.unit}", aim, f"{value:.3g}{bar.unit}", verdict))
    return rows


def _describe(point: Point) -> str:
    words = [format_bytes(point.params["bytes_per_rank"])]
    if point.name == "lag_cost":
        words.append(f"k = {point.params['lag']}")
    if "state" in point.params:
        words.append(str(point.params["state"]))
    if point.name in ("oversubscribed", "idle", "torch_all_to_all"):
        words.append(f"{point.params['ranks']} ranks")
    return ", ".join(words)


def main(argv: Sequence[str]) -> int:
    """``bars FOLDER``: judges the points of all ``*.jsonl`` files there. The status is 0 for any verdict."""
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("usage: python -m benchmarks.harness.bars FOLDER", file=sys.stderr)
        return 2
    points = [point for path in sorted(Path(argv[0]).glob("*.jsonl")) for point in read_json_lines(path)]
    print(format_table(("bar", "at", "must", "aim", "measured", "reached"), judge(points)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
