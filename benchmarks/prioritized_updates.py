# SPDX-License-Identifier: Apache-2.0
"""Exposed time of embedding exchanges in training steps: plain, prioritized, and by TorchRec's pipeline.

Each rank looks up ids with a Zipf popularity in one table that all ranks share, and runs dense layers over the
embeddings, forward and backward. In all systems the keys of the next step travel while the present one computes.
``headway_plain`` reads rows after the update. ``headway_prioritized`` reads those that the present step leaves as they
are before it (``HashTableCollection.read_ahead()``). ``torchrec`` is an ``EmbeddingCollection``, row-wise sharded, in
``TrainPipelineSparseDist``; its table has a row for every id. Dense gradients are not added over ranks, so no other
exchange disturbs.

*Exposed* is the time in which exchanges run on a GPU and nothing else does, from a trace of some steps. On CPUs, and as
``waited`` on GPUs, it is the time that the caller, or its stream, waits for exchanges. Both are those of the rank with
the least: a faster rank also waits for the compute of a slower one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.gpus import expect_gpu_each
from benchmarks.harness.points import Point, parse_point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_ranks
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "exposed time of embedding exchanges, with and without prioritized updates, against TorchRec's pipeline"

PLAIN, PRIORITIZED, TORCHREC = "headway_plain", "headway_prioritized", "torchrec"
_WAIT_S = 120  #: Seconds that a rank waits for another one. No step takes nearly as long.
_SETTINGS = ("device", "systems", "batch", "dim", "ids", "exponent", "hidden", "layers", "warm_up", "rounds", "backend")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("prioritized_updates", DESCRIPTION, ranks=(2,), rounds=20)
    for name, default, text in (
        ("--batch", 262_144, "ids of a rank and step, a multiple of 4"),
        ("--dim", 256, "columns of an embedding"),
        ("--ids", 50_000_000, "distinct ids that may come"),
        ("--hidden", 4096, "columns between the two products of a layer; four ids are a token of 4 * dim columns"),
        ("--layers", 18, "dense layers of two products each"),
        ("--warm-up", 5, "steps before those that are timed"),
        ("--time-limit", 300, "seconds of a run"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.05, help="of the Zipf law of ids (default: %(default)s)")
    parser.add_argument(
        "--systems", choices=(PLAIN, PRIORITIZED, TORCHREC), nargs="+", default=[PLAIN, PRIORITIZED],
        help="(default: both of Headway)",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    parser.add_argument("--backend", choices=("nccl", "headway", "gloo"), default="nccl", help="(default: %(default)s)")
    return measure_and_report(
        "prioritized_updates", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each number of ranks and system.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks, or a rank failed.
    """
    if options.device == "cuda":
        expect_gpu_each(options.ranks)
    points = []
    for num_ranks in options.ranks:
        printed = run_torch_ranks(
            "benchmarks.torch_ranks.prioritized_updates_rank",
            {name: getattr(options, name) for name in _SETTINGS} | {"timeout_s": _WAIT_S},
            num_ranks=num_ranks,
            time_limit_s=options.time_limit,
        )
        points += [parse_point(line) for line in printed.splitlines() if line.startswith("{")]
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each number of ranks and system. Ratios are those of exposed times to plain."""
    rows = []
    for num_ranks, of_ranks in itertools.groupby(points, key=lambda point: point.params["ranks"]):
        by_system = {point.system: point for point in of_ranks}
        plain = by_system.get(PLAIN)
        for name, point in by_system.items():
            exposed = point.extra["exposed_s"]
            is_known = plain is not None and exposed is not None and plain.extra["exposed_s"]
            ratio = exposed / plain.extra["exposed_s"] if plain is not None and is_known else None
            share = point.extra["collision_share"]
            rows.append(
                (
                    str(num_ranks),
                    name,
                    format_time(point.median_s),
                    "" if exposed is None else format_time(exposed),
                    format_ratio(ratio, None, None),
                    format_time(point.extra["waited_s"]) if point.extra["waited_s"] is not None else "",
                    "" if share is None else f"{100 * share:.0f}%",
                )
            )
    header = ("ranks", "system", "a step", "exposed", "of plain", "waited", "collisions")
    return format_table(header, rows)
