# SPDX-License-Identifier: Apache-2.0
"""Ratios of two systems that are measured in turns, so that slow drifts of the machine cancel.

Idea: in every round each system runs once, one right after the other. A round is compared with itself: its ratio is the
reference's time over the system's time. The result is the median of these ratios, not the ratio of two medians.

Example: three rounds, reference 10, 100, 12 us and system 5, 50, 12 us. The machine was ten times slower in the second
round. The ratios are 2, 2, 1, so ``ratio`` = 2, ``ratio_low`` = 1 and ``ratio_high`` = 2. The ratio of the medians
would be 12 / 12 = 1.

Invariants: a factor that slows a whole round leaves its ratio unchanged. A round in which one of the two has no time
gives no ratio. The bootstrap has a fixed seed, so the same values give the same interval.
Complexity: O(rounds * points); O(4000 * values) time and memory for an interval.
Source: percentile bootstrap, Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness.points import Point

_RESAMPLES = 4000
_SEED = 20


@dataclasses.dataclass(frozen=True)
class Interval:
    """Median and 95% interval."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Computes the median of ``values`` and its 95% interval by the bootstrap (4000 resamples, fixed seed).

    Raises:
        ValueError: ``values`` is empty.
    """
    if not values:
        raise ValueError("no values to take the median of")
    sample = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(_SEED).integers(0, sample.size, size=(_RESAMPLES, sample.size))
    low, high = np.quantile(np.median(sample[chosen], axis=1), (0.025, 0.975))
    return Interval(float(np.median(sample)), float(low), float(high))


def combine_rounds(rounds: Sequence[Sequence[Point]], *, reference: str | None) -> list[Point]:
    """Merges the points of all rounds into one for each system and set of parameters.

    Args:
        rounds: the points of each round, of all systems.
        reference: ratios compare with this system, for the points that it has; None: no ratios.
    Returns:
        points in the order of the first round. Times are medians over rounds. ``ratio`` is the median over rounds of
        the reference's median time over this system's; ``ratio_low`` and ``ratio_high`` are its extremes.
        ``mean_ratio`` is the same for mean times.
    """
    by_key: dict[tuple[object, str], list[Point | None]] = defaultdict(lambda: [None] * len(rounds))
    for index, points in enumerate(rounds):
        for point in points:
            by_key[point.key, point.system][index] = point
    combined = []
    for (key, _system), of_rounds in by_key.items():
        references = by_key.get((key, reference)) if reference is not None else None
        combined.append(_combine(of_rounds, references))
    return combined


def _combine(of_rounds: Sequence[Point | None], references: Sequence[Point | None] | None) -> Point:
    present = [point for point in of_rounds if point is not None]
    extra = dict(present[0].extra)
    ratio = None
    of_reference = references or [None] * len(of_rounds)
    ratios = _paired_ratios(of_rounds, of_reference, lambda point: point.median_s)
    if ratios:
        ratio = statistics.median(ratios)
        extra |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
    mean_ratios = _paired_ratios(of_rounds, of_reference, lambda point: point.extra.get("mean_s"))
    if mean_ratios:
        extra["mean_ratio"] = statistics.median(mean_ratios)
    for name in ("mean_s", "slowest_rank_median_s", "host_s"):
        if name in extra:
            extra[name] = statistics.median(point.extra[name] for point in present)
    return dataclasses.replace(
        present[0],
        median_s=_median_of([point.median_s for point in present]),
        p5_s=_median_of([point.p5_s for point in present]),
        p95_s=_median_of([point.p95_s for point in present]),
        rate=_median_of([point.rate for point in present]),
        samples=sum(point.samples for point in present),
        ratio=ratio,
        extra=extra | {"rounds": len(present)},
    )


def _paired_ratios(
    points: Sequence[Point | None], references: Sequence[Point | None], time_s: Callable[[Point], float | None]
) -> list[float]:
    ratios = []
    for point, reference in zip(points, references, strict=True):
        if point is None or reference is None:
            continue
        own_s, reference_s = time_s(point), time_s(reference)
        if own_s and reference_s:
            ratios.append(reference_s / own_s)
    return ratios


def _median_of(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None
