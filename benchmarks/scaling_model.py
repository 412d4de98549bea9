# SPDX-License-Identifier: Apache-2.0
"""Model of weak scaling: the time of a training step on many GPUs, from times measured on a few. It runs no training.

Idea: each rank has as many samples as one GPU alone, which takes t1 for a step. R ranks take

    t(R) = t1 w(R) + x(R),    x(R) = f (R - 1) + b (near + s far) / R

w(R) is the time of the slowest rank over the mean, by a plan for drawn samples and by noise: the slowest of R passes is
slower than the mean by the expected largest of R normal deviations. x(R) is the time of exchanges and sums that compute
does not hide. f is a fixed time for each peer. b is the time of all bytes of a rank over the link of a host. Of R ranks
``near`` others are on the rank's host, and ``far`` ones behind links that are s times as slow.

Example: t1 = 33.0 ms, and two balanced GPUs take 39.4 ms. Noise of 1% makes the slower one of two 0.6% slower. So
6.2 ms are exposed. With one time beside t1, f is 0 and b is 12.4 ms. Eight GPUs of a host then take
33.5 + 12.4 * 7 / 8 = 44.3 ms.

Invariants: t(1) = t1, and without noise times that the model itself gives are fitted without an error. Efficiency,
t1 / t(R), includes all of w(R), so without a plan it is at most the planned evenness.
Complexity: one plan for each number of ranks, and a least-squares problem with two unknowns that are not negative.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from headway.ops import plan_batches
from headway.parallel.balance import SampleWeight
from headway.parallel.balance.described import evenness

from benchmarks.harness.arguments import OneLineParser, whole_number
from benchmarks.harness.points import Point, read_json_lines
from benchmarks.sequence_balance import LengthLaw
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "a model of weak scaling on 2 to 128 GPUs, from times on a few; runs nothing"

_DRAWS = 5  #: Plans of other samples, whose mean counts.


@dataclass(frozen=True, kw_only=True)
class Links:
    """Says where the peers of a rank are.

    Attributes:
        per_host: GPUs of a host.
        slowdown: s, the time of a byte between hosts over that within one.
    """

    per_host: int = 8
    slowdown: float = 9.0

    def bytes_time(self, num_ranks: int) -> float:
        """Time of a rank's bytes, in units of that of all of them over the link of a host."""
        near = min(num_ranks, self.per_host) - 1
        return (near + self.slowdown * max(0, num_ranks - self.per_host)) / num_ranks


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The fitted model.

    Attributes:
        alone_s: t1, seconds of a step on one GPU.
        peer_s: f, exposed seconds for each peer.
        bytes_s: b, exposed seconds of all bytes.
        links: of the ranks.
    """

    alone_s: float
    peer_s: float
    bytes_s: float
    links: Links

    def step_s(self, num_ranks: int, slowest: float) -> float:
        """Seconds of a step; ``slowest`` is w, the time of the slowest rank over the mean."""
        return self.alone_s * slowest + self.peer_s * (num_ranks - 1) + self.bytes_s * self.links.bytes_time(num_ranks)


def fit(measured: Mapping[int, float], slowest: Mapping[int, float], links: Links) -> Scaling:
    """Fits the model.

    Args:
        measured: seconds of a step by the number of ranks, 1 and more.
        slowest: w by the number of ranks.
        links: of the ranks.
    Raises:
        ValueError: there is no time of one rank, or of several.
    """
    if 1 not in measured or len(measured) < 2:
        raise ValueError(f"times on 1 GPU and on several are needed, and there are those on {sorted(measured)}")
    several = sorted(set(measured) - {1})
    exposed = np.array([measured[ranks] - measured[1] * slowest[ranks] for ranks in several])
    columns = np.array([[ranks - 1.0, links.bytes_time(ranks)] for ranks in several])
    found = Scaling(alone_s=measured[1], peer_s=0.0, bytes_s=0.0, links=links)
    # The solution with least squares that is not negative is one of these four.
    candidates = [found]
    for used in ([1], [0], [0, 1]) if len(several) > 1 else ([1],):
        solution = np.zeros(2)
        solution[used] = np.linalg.lstsq(columns[:, used], exposed, rcond=None)[0]
        if solution.min() >= 0:
            candidates.append(replace(found, peer_s=float(solution[0]), bytes_s=float(solution[1])))
    return min(candidates, key=lambda each: sum((measured[n] - each.step_s(n, slowest[n])) ** 2 for n in several))


def largest_of(count: int) -> float:
    """Expected largest of ``count`` independent standard normal values, within 0.01. Source: Blom, 1958."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def slowest_rank(num_ranks: int, law: LengthLaw, *, samples: int, square: float, balanced: bool, noise: float) -> float:
    """w(R): the time of the slowest rank over the mean.

    Args:
        num_ranks: R.
        law: of the lengths.
        samples: of a rank.
        square: weight of the square of a length (``SampleWeight``).
        balanced: samples are planned; otherwise they stay where they were drawn.
        noise: standard deviation of the time of a pass, over its mean.
    """
    found = []
    for seed in range(_DRAWS):
        weights = SampleWeight(square=square).of(law.draw(samples * num_ranks, seed=seed))
        ranks = torch.arange(len(weights)) % num_ranks
        if balanced:
            ranks = plan_batches(weights, num_ranks, method="fixed_greedy")
        found.append(1 / evenness(ranks, weights, num_ranks))
    return statistics.mean(found) * (1 + noise * largest_of(num_ranks))


def steps_of(points: Sequence[Point], shape: str) -> dict[int, float]:
    """Seconds of Headway's step by the number of ranks, from the last commit with times of several numbers."""
    by_commit: dict[str, dict[int, float]] = {}
    for point in points:
        if (point.name, point.system, point.params.get("shape")) == ("grm_training", "headway", shape):
            times = by_commit.setdefault(str(point.extra.get("commit")), {})
            if point.median_s is not None:
                times[point.params.get("ranks", 1)] = point.median_s
    return next((times for times in reversed(by_commit.values()) if len(times) > 1), {})


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = OneLineParser(prog="scaling_model", description=DESCRIPTION)
    parser.add_argument("results", type=Path, help="JSON lines of grm_training, for 1 GPU and for several")
    parser.add_argument("--shape", default="grm_4g", help="of the model (default: %(default)s)")
    parser.add_argument("--ranks", type=whole_number(1), nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128], metavar="N",
                        help="GPUs (default: 1 to 128)")  # fmt: skip
    parser.add_argument("--lengths", default="600", metavar="600|21k|FOLDER", help="(default: %(default)s)")
    parser.add_argument("--longest", type=whole_number(16), help="clip lengths (default: by the law)")
    for name, kind, default, text in (
        ("--samples", whole_number(1), 480, "of a rank in a step"),
        ("--square", float, 0.00027, "of a length, in the weight of a sample"),
        ("--noise", float, 0.01, "standard deviation of the time of a pass, over its mean"),
        ("--per-host", whole_number(1), 8, "GPUs of a host"),
        ("--slowdown", float, 9.0, "time of a byte between hosts over that within one; 450 GB/s of NVLink over 50"),
    ):
        parser.add_argument(name, type=kind, default=default, help=f"{text} (default: {default})")
    options = parser.parse_args(argv)
    law = LengthLaw.of(options.lengths, options.longest)
    try:
        measured = steps_of(read_json_lines(options.results), options.shape)
        slowest = {
            (ranks, balanced): slowest_rank(
                ranks, law, samples=options.samples, square=options.square, balanced=balanced, noise=options.noise
            )
            for ranks in {*options.ranks, *measured}
            for balanced in (True, False)
        }
        links = Links(per_host=options.per_host, slowdown=options.slowdown)
        scaling = fit(measured, {ranks: w for (ranks, balanced), w in slowest.items() if balanced}, links)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(
        f"{options.shape}, {options.samples} samples of a rank. A model, fitted to {sorted(measured)} GPUs: "
        f"exposed are {format_time(scaling.peer_s)} for each peer and {format_time(scaling.bytes_s)} for all bytes"
    )
    print(format_scaling(scaling, options.ranks, measured, slowest))
    return 0


def format_scaling(
    scaling: Scaling,
    num_ranks: Sequence[int],
    measured: Mapping[int, float],
    slowest: Mapping[tuple[int, bool], float],
) -> str:
    """Formats a line for each number of ranks. ``slowest`` has w by that number, with and without a plan."""
    rows = []
    for ranks in num_ranks:
        step_s, unplanned_s = (scaling.step_s(ranks, slowest[ranks, balanced]) for balanced in (True, False))
        was = measured.get(ranks)
        rows.append(
            (
                str(ranks),
                "" if was is None else format_time(was),
                format_time(step_s),
                f"{scaling.alone_s / step_s:.2f}",
                f"{scaling.alone_s / unplanned_s:.2f}",
            )
        )
    return format_table(("GPUs", "measured", "model", "weak scaling, balanced", "unbalanced"), rows)
