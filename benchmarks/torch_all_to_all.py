"""``torch.distributed.all_to_all_single`` over Headway and over Gloo, in turns in the same processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.harness.arguments import flat, make_parser, whole_number
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.table import format_bytes, format_ratio, format_table, format_time
from benchmarks.harness.torch_ranks import measure_torch_ranks
from benchmarks.torch_ranks.block_sizes import SPLITS

DESCRIPTION = "torch.distributed.all_to_all_single against Gloo"

_HEADWAY = "headway"
_GLOO = "gloo"


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = make_parser("torch_all_to_all", DESCRIPTION, ranks=(8,), sizes="8,64,512,4K,32K,256K,2M,16M",
                         against=_GLOO, rounds=5)  # fmt: skip
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=["even"],
                        help="how a rank's bytes are spread (default: even)")  # fmt: skip
    parser.add_argument("--repetitions", type=whole_number(1), metavar="N",
                        help="timed calls of a point and round (default: by size)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip
    options = parser.parse_args(argv)
    return measure_and_report(
        "torch_all_to_all", parser, options, measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """All points, combined over rounds."""
    settings = {
        "systems": [_HEADWAY] if options.against == "none" else [_HEADWAY, _GLOO],
        "sizes": flat(options.sizes),
        "splits": options.split,
        "rounds": options.rounds,
        "repetitions": options.repetitions,
        "timeout_s": options.time_limit,
    }
    points = []
    for ranks in options.ranks:
        points += measure_torch_ranks(
            "benchmarks.torch_ranks.all_to_all_rank",
            settings,
            num_ranks=ranks,
            time_limit_s=options.time_limit,
            reference=_GLOO,
        )
    return points


def format_points(points: Sequence[Point]) -> str:
    """The table: one row for each number of ranks, split and size."""
    others = {point.key: point for point in points if point.system == _GLOO}
    rows = []
    for point in points:
        if point.system == _HEADWAY:
            other = others.get(point.key)
            rows.append(
                (
                    f"{point.params['ranks']} ranks, {point.params['split']}",
                    format_bytes(point.params["bytes_per_rank"]),
                    format_time(point.median_s),
                    format_time(other.median_s if other else None),
                    format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high")),
                )
            )
    return format_table(("", "per rank", "headway", "gloo", "faster (rounds)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    combinations = dict.fromkeys((point.params["ranks"], point.params["split"]) for point in points)
    return [
        Panel(
            title=f"torch, {ranks} ranks, {split}",
            points=[p for p in points if (p.params["ranks"], p.params["split"]) == (ranks, split)],
            x=lambda point: float(point.params["bytes_per_rank"]),
            x_label="bytes per rank",
        )
        for ranks, split in combinations
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
