# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks of ``torch.distributed.all_to_all_single``: options and points."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.arguments import OneLineParser, flat, whole_number
from benchmarks.harness.points import Point
from benchmarks.harness.torch_ranks import measure_torch_ranks
from benchmarks.torch_ranks.block_sizes import DEFAULT_UNIT, SPLITS


def add_exchange_options(parser: OneLineParser, *, splits: Sequence[str]) -> None:
    """Adds options besides those of ``make_parser()``. ``splits`` is the default of ``--split``."""
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=list(splits),
                        help=f"how a rank's bytes are spread (default: {' '.join(splits)})")  # fmt: skip
    parser.add_argument("--unit", type=whole_number(1), default=DEFAULT_UNIT, metavar="BYTES",
                        help="blocks are multiples of it, as rows are; 1 gives odd sizes "
                             "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--repetitions", type=whole_number(1), metavar="N",
                        help="timed calls of a point and round (default: by size)")  # fmt: skip
    parser.add_argument("--time-limit", type=whole_number(1), default=300, metavar="S",
                        help="of a run (default: %(default)s s)")  # fmt: skip


def measure_exchanges(
    module: str, options: argparse.Namespace, *, systems: Sequence[str], reference: str, **further: Any
) -> list[Point]:
    """Measures all points, combined over rounds.

    Args:
        module: module of one rank of the benchmark; see ``run_torch_ranks()``.
        options: the parsed command line.
        systems: systems to measure besides ``reference``, which ``--against none`` leaves out.
        reference: ratios compare with this system.
        further: settings of this benchmark's ranks.
    """
    settings = {
        **further,
        "systems": [*systems] if options.against == "none" else [*systems, reference],
        "sizes": flat(options.sizes),
        "splits": options.split,
        "unit": options.unit,
        "rounds": options.rounds,
        "repetitions": options.repetitions,
        "timeout_s": options.time_limit,
    }
    points = []
    for ranks in options.ranks:
        points += measure_torch_ranks(
            module, settings, num_ranks=ranks, time_limit_s=options.time_limit, reference=reference
        )
    return points
