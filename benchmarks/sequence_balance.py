# SPDX-License-Identifier: Apache-2.0
"""Balanced sequences: how long ranks are idle by plan, and by the measured time of each rank's batch.

For each number of ranks the samples of a step are drawn, and divided among virtual ranks: as they come
(``unbalanced``), and by each planner. The weight of a sample is fitted on the device before. The planned idle part is
1 - mean / largest weight of a rank.

``--replay`` then runs the batch of each virtual rank on the device, forward and backward, one after the other. The
measured idle part is 1 - mean / largest time of a rank. The time of a step is that of its slowest rank, and the speedup
is the time of the unbalanced step over it. So compute is measured, and communication is not part of it. A GPU measures
its own time: the host enqueues the next batch while it computes, as in a training.

Lengths: ``600`` is lognormal with a mean of 600, at most 3,000; ``21k`` is lognormal with median 8,591 and sigma 0.8,
at most 21,000; both as MTGRBoost and FreeScale describe their data. A path is a Parquet folder whose histories give the
lengths, drawn again and again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from headway.data import SampleSchema
from headway.embedding import LOCAL, Sgd
from headway.nn import GRM, GRMConfig
from headway.ops import plan_batches
from headway.ops.batch_plan import Method
from headway.parallel.balance import SampleWeight
from headway.parallel.balance.described import evenness
from headway.training.sample_cost import FittedCost, measure_cost
from headway.training.trial_passes import TrialPasses, make_samples

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "balanced sequences: idle time of 2 to 512 ranks, planned and replayed"

_SCHEMA = SampleSchema(events=("item", "shop"), actions=("action",), labels=("click", "buy"))
_TARGETS = 8  #: Targets of a sample, which are among its tokens.
_PLANNERS: dict[str, Method | None] = {
    "unbalanced": None,
    "fixed, greedy": "fixed_greedy",
    "fixed, zigzag": "fixed_zigzag",
    "variable, greedy": "variable_greedy",
    "variable, segments": "variable_segments",
}
#: A model that a CPU replays in a short time.
_TINY = GRMConfig(dim=64, num_layers=2, num_heads=2, head_dim=32, max_length=21_000, embedding_dim=16)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("sequence_balance", DESCRIPTION, ranks=(2, 8, 64, 256, 512), rounds=3)
    parser.add_argument("--lengths", default="600", metavar="600|21k|FOLDER", help="(default: %(default)s)")
    for name, default, text in (
        ("--samples", 80, "of a rank in a step"),
        ("--replayed-tokens", 41_000, "largest batch of the passes that fit the weight"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--longest", type=whole_number(16), help="clip lengths (default: by the law)")
    parser.add_argument("--planners", nargs="+", choices=_PLANNERS, default=list(_PLANNERS), metavar="PLANNER")
    parser.add_argument("--replay", action="store_true", help="run the batch of each rank")
    parser.add_argument(
        "--warmups", type=int, default=2, help="passes of a batch that are not timed (default: %(default)s)"
    )
    parser.add_argument("--shape", choices=("tiny", "grm_4g", "grm_110g"), default="tiny", help="model to replay")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu", help="(default: %(default)s)")
    return measure_and_report(
        "sequence_balance", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks and planner.

    Raises:
        BenchmarkError: the device is missing, or there are no lengths.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    law = LengthLaw.of(options.lengths, options.longest)
    with _passes(options, law.longest) as passes:
        cost = measure_cost(
            passes, tokens=options.replayed_tokens, longest=law.longest, device=torch.device(options.device)
        )
        print(
            f"a sample of L tokens costs L + {cost.square:.3g} L^2 (error {cost.square_error:.1%}), "
            f"or L^{cost.exponent:.2f} (error {cost.power_error:.1%})"
        )
        return [
            point
            for num_ranks in options.ranks
            for point in _measure_ranks(options, num_ranks, law, cost, passes if options.replay else None)
        ]


class LengthLaw(NamedTuple):
    """Lengths of samples: ``known`` ones to draw from, or a lognormal law.

    Attributes:
        longest: largest length.
        median, sigma: of the law.
        known: lengths of a data set; None: the law is used.
    """

    longest: int
    median: float = 0.0
    sigma: float = 0.0
    known: torch.Tensor | None = None

    @classmethod
    def of(cls, name: str, longest: int | None) -> LengthLaw:
        if name == "600":  # A mean of 600 after the clip, as MTGRBoost has it.
            return cls(longest or 3000, median=float(np.exp(5.949)), sigma=1.0)
        if name == "21k":
            return cls(longest or 21_000, median=8591, sigma=0.8)
        parts = [
            pc.list_value_length(pq.read_table(path, columns=["time"])["time"]).to_numpy()
            for path in sorted(Path(name).glob("*.parquet"))
        ]
        if not parts:
            raise BenchmarkError(f"--lengths {name}: there are no Parquet files")
        known = torch.from_numpy(np.concatenate(parts).astype(np.int64)) + _TARGETS
        return cls(longest or int(known.max()), known=known)

    def draw(self, count: int, seed: int) -> torch.Tensor:
        """Draws lengths, (count,) int64."""
        random = torch.Generator().manual_seed(seed)
        if self.known is not None:
            drawn = self.known[torch.randint(len(self.known), (count,), generator=random)]
        else:
            drawn = (self.median * torch.exp(self.sigma * torch.randn(count, generator=random))).long()
        return drawn.clamp(_TARGETS + 1, self.longest)


def _passes(options: argparse.Namespace, longest: int) -> TrialPasses:
    config = _TINY if options.shape == "tiny" else GRMConfig.preset(options.shape)
    config = replace(config, max_length=max(longest, config.max_length))
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = GRM(config, _SCHEMA, optimizer=Sgd(lr=0.1), process_group=LOCAL, device=device)
    return TrialPasses(
        model,
        _SCHEMA,
        device=device,
        autocast=lambda: torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"),
        warmups=options.warmups,
        rounds=options.rounds,
    )


def _measure_ranks(
    options: argparse.Namespace, num_ranks: int, law: LengthLaw, cost: FittedCost, passes: TrialPasses | None
) -> list[Point]:
    lengths = law.draw(options.samples * num_ranks, seed=num_ranks)
    weights = SampleWeight(square=cost.square).of(lengths)
    points: list[Point] = []
    unbalanced_s = None
    for planner in sorted(options.planners, key=list(_PLANNERS).index):  # ``unbalanced`` comes first.
        ranks, plan_s = _plan(weights, num_ranks, _PLANNERS[planner], options.rounds)
        extra = {
            "planned_idle": 1 - evenness(ranks, weights, num_ranks),
            "idle_tokens": 1 - evenness(ranks, lengths, num_ranks),
            "idle_samples": 1 - evenness(ranks, torch.ones_like(ranks), num_ranks),
            "square_weight": cost.square,
            "square_error": cost.square_error,
            "exponent": cost.exponent,
            "power_error": cost.power_error,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        }
        of_step, seconds = None, []
        if passes is not None:
            seconds = passes.times_of(
                [make_samples(_SCHEMA, lengths[ranks == rank], num_targets=_TARGETS) for rank in range(num_ranks)]
            )
            of_step = max(seconds)
            if planner == "unbalanced":
                unbalanced_s = of_step
            extra["replayed_idle"] = 1 - statistics.mean(seconds) / of_step
        extra["plan_s"] = plan_s
        points.append(
            Point(
                name="sequence_balance",
                params={
                    "ranks": num_ranks, "lengths": options.lengths, "samples": options.samples, "shape": options.shape,
                    "longest": law.longest,
                },
                system=planner, median_s=of_step, unit="s of the slowest rank",
                p5_s=float(np.quantile(seconds, 0.05)) if seconds else None,
                p95_s=float(np.quantile(seconds, 0.95)) if seconds else None,
                ratio=unbalanced_s / of_step if of_step is not None and unbalanced_s is not None else None,
                extra=extra,
            )
        )  # fmt: skip
    return points


def _plan(
    weights: torch.Tensor, num_ranks: int, method: Method | None, rounds: int
) -> tuple[torch.Tensor, float | None]:
    """Returns the rank of each sample, and the median seconds of a plan."""
    if method is None:
        return torch.arange(len(weights)) % num_ranks, None
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        ranks = plan_batches(weights, num_ranks, method=method)
        seconds.append(time.perf_counter() - began)
    return ranks, statistics.median(seconds)


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks and planner."""
    rows = [
        (
            str(point.params["ranks"]),
            point.system,
            "" if point.extra["plan_s"] is None else format_time(point.extra["plan_s"]),
            f"{point.extra['planned_idle']:.2%}",
            f"{point.extra['idle_tokens']:.1%}",
            f"{point.extra['idle_samples']:.1%}",
            f"{point.extra['replayed_idle']:.2%}" if "replayed_idle" in point.extra else "",
            "" if point.median_s is None else format_time(point.median_s),
            format_ratio(point.ratio, None, None),
        )
        for point in points
    ]
    columns = ("ranks", "planner", "plan", "planned idle", "tokens", "samples", "replayed idle", "a step", "speedup")
    return format_table(columns, rows)
