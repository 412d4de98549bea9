# SPDX-License-Identifier: Apache-2.0
"""Steps of a full table that evicts: how much longer than the median step is the longest?

The table is filled to ``low_water``, a share of ``max_rows``. Then every step looks up new ids and some of the last 32
x keys ids, trains them, and evicts if it begins with more than ``high_water`` times ``max_rows`` rows. Steps are timed
from the first eviction on. On a GPU each step is waited for, or the host is up to ``--ahead`` steps ahead of the device
and events time the steps. The steps are the same in every round. Two ratios answer the question:
    of a round      the longest step of a round over its median step; the median over the rounds. It has everything that
                    happened, interruptions by other programs too.
    of least times  a step's time is its least over the rounds. A step that was interrupted in one round does not count,
                    but a phase in which the host was faster makes the steps of other phases look long.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from headway.embedding import LOCAL, Eviction, FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "steps of a full table that evicts rows: the longest against the median"

_SCATTER = 0x1E3779B97F4A7C15  #: Odd multiplier: maps consecutive numbers to ids that differ and look random.
_RECENT_BATCHES = 32  #: Old ids of a step are drawn from the newest ids, so many times the ids of a step.
_WARM_UP_STEPS = 10
_PARAMS = ("device", "rows", "dim", "keys", "threads", "ahead")


class _FullTable:
    """A table at ``low_water``, and training steps on it. ``new`` is the share of a step's ids that are new."""

    def __init__(self, options: argparse.Namespace, policy: str, new: float) -> None:
        self._device = torch.device(options.device)
        self._tables = HashTableCollection(
            tables=[
                TableConfig("t", dim=options.dim, optimizer=RowWiseAdagrad(lr=0.01), max_rows=options.rows,
                            eviction=Eviction(policy=policy))
            ],
            features=[FeatureConfig("f", table="t", pooling=None)],
            process_group=LOCAL,  # One rank has all ids.
            num_threads=options.threads if self._device.type == "cpu" else None,
            device=self._device,
        )  # fmt: skip
        self._random = np.random.default_rng(5)
        self._num_keys, self._num_new = options.keys, int(options.keys * new)
        self._next = 0  # Number behind the next new id; times _SCATTER it is the id.
        while self._next < options.rows * Eviction(policy=policy).low_water - options.keys:
            self._train(self._draw_new(options.keys))

    def draw(self) -> torch.Tensor:
        """Draws the ids of a step: (keys,) int64 on the table's device."""
        recent = min(self._next, _RECENT_BATCHES * self._num_keys)
        old = self._next - 1 - self._random.integers(0, recent, self._num_keys - self._num_new)
        ids = torch.cat((self._draw_new(self._num_new), torch.from_numpy(old) * _SCATTER))
        return ids[torch.from_numpy(self._random.permutation(len(ids)))].to(self._device)

    def time_steps(self, count: int, ahead: int) -> list[float]:
        """Runs steps. Returns their durations in seconds, device work included.

        Args:
            ahead: steps that the host may be ahead of the device; 0: it waits for each.
        """
        if ahead == 0:
            return [self._time_step(self.draw()) for _ in range(count)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        ends[0].record()
        for step in range(count):
            self._train(self.draw())
            ends[step + 1].record()
            ends[max(0, step + 1 - ahead)].synchronize()
        self._synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(ends)]

    def _time_step(self, ids: torch.Tensor) -> float:
        self._synchronize()
        started = time.perf_counter()
        self._train(ids)
        self._synchronize()
        return time.perf_counter() - started

    def statistics(self) -> dict[str, int]:
        """Returns the counters of the table."""
        return self._tables.statistics()["tables"]["t"]  # type: ignore[no-any-return]

    def _draw_new(self, count: int) -> torch.Tensor:
        ids = torch.arange(self._next, self._next + count) * _SCATTER
        self._next += count
        return ids

    def _train(self, ids: torch.Tensor) -> None:
        lengths = torch.tensor([len(ids)])
        vectors = self._tables({"f": (ids.to(self._device), lengths.to(self._device))})["f"]
        vectors.sum().backward()  # type: ignore[no-untyped-call]
        self._tables.optimizer.step()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("eviction", DESCRIPTION, ranks=(1,), rounds=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the table (default: %(default)s)")
    parser.add_argument("--policy", nargs="+", choices=("lru", "lfu"), default=["lru", "lfu"],
                        help="of eviction (default: lru lfu)")  # fmt: skip
    parser.add_argument("--new", type=float, nargs="+", default=[1.0, 0.5], metavar="SHARE",
                        help="parts of a step's ids that were never seen (default: 1.0 0.5)")  # fmt: skip
    for name, default, text in (
        ("--rows", 8_000_000, "max_rows of the table"),
        ("--keys", 65_536, "ids of a step"),
        ("--dim", 32, "values of an embedding"),
        ("--steps", 300, "timed steps"),
        ("--threads", os.cpu_count() or 1, "of a table on the CPU"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--ahead", type=whole_number(0), default=0, metavar="N",
                        help="steps the host may be ahead of a GPU; 0: it waits for each (default: 0)")  # fmt: skip
    options = parser.parse_args(argv)
    if not all(0 < share <= 1 and int(options.keys * share) > 0 for share in options.new):
        parser.error("--new: parts of at least one id, and at most 1, expected")
    if options.keys > options.rows // 4:
        parser.error("--keys: at most a quarter of --rows expected")
    if options.ahead > 0 and options.device == "cpu":
        parser.error("--ahead: only with --device cuda, since a table on the CPU works in the call")
    return measure_and_report("eviction", parser, options, measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for each policy and part of new ids.

    Raises:
        BenchmarkError: nothing was evicted in the timed steps.
    """
    return [_measure_point(options, policy, new) for policy in options.policy for new in options.new]


def _measure_point(options: argparse.Namespace, policy: str, new: float) -> Point:
    rounds = [_time_steps(options, policy, new) for _ in range(options.rounds)]
    evicted = rounds[0][1]
    if evicted < options.rows * (Eviction(policy=policy).high_water - Eviction(policy=policy).low_water):
        raise BenchmarkError(f"{options.steps} steps are less than one eviction: give --steps a larger number")
    # A step is the same in all rounds: its least time is without interruptions by other programs.
    durations_s = np.min([durations_s for durations_s, _ in rounds], axis=0)
    p5_s, median_s, p95_s, p99_s = np.quantile(durations_s, (0.05, 0.5, 0.95, 0.99)).tolist()
    longest_s = float(durations_s.max())
    of_rounds = sorted(max(each) / statistics.median(each) for each, _ in rounds)
    return Point(
        name="eviction", params={**{name: getattr(options, name) for name in _PARAMS}, "policy": policy, "new": new},
        system="headway", median_s=median_s, p5_s=p5_s, p95_s=p95_s, samples=len(durations_s),
        rate=options.keys / median_s, unit="ids/s",
        extra={
            "p99_s": p99_s, "longest_s": longest_s, "longest_over_median": longest_s / median_s, "evicted": evicted,
            "longest_over_median_of_rounds": of_rounds,
            "rounds": options.rounds, "longest_of_all_rounds_s": max(max(durations_s) for durations_s, _ in rounds),
        },
    )  # fmt: skip


def _time_steps(options: argparse.Namespace, policy: str, new: float) -> tuple[list[float], int]:
    """Times the steps of a new table, which are the same in every call. Returns durations and rows evicted."""
    table = _FullTable(options, policy, new)
    # The first steps fill the table up to high_water, and the first eviction allocates scratch memory.
    while table.statistics()["evicted"] == 0:
        table.time_steps(1, 0)
    table.time_steps(_WARM_UP_STEPS, 0)
    before = table.statistics()["evicted"]
    gc.collect()
    gc.disable()  # A collection in Python takes several milliseconds.
    try:
        durations_s = table.time_steps(options.steps, options.ahead)
    finally:
        gc.enable()
    return durations_s, table.statistics()["evicted"] - before


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each point."""
    rows = [
        (
            "{policy}, {new:.0%} new".format(**point.params),
            format_time(point.median_s),
            format_time(point.extra["p99_s"]),
            format_time(point.extra["longest_s"]),
            f"{point.extra['longest_over_median']:.2f}",
            "{1:.2f} ({0:.2f} to {2:.2f})".format(*_middle_and_ends(point.extra["longest_over_median_of_rounds"])),
            str(point.extra["evicted"]),
        )
        for point in points
    ]
    titles = ("least of the rounds", "median step", "99%", "longest", "longest / median", "of a round", "evicted")
    return format_table(titles, rows)


def _middle_and_ends(ascending: Sequence[float]) -> tuple[float, float, float]:
    """Returns the least, the median and the greatest number."""
    return ascending[0], statistics.median(ascending), ascending[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
