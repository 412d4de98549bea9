# SPDX-License-Identifier: Apache-2.0
"""Plans of context parallelism: how even the work of ranks is, what they send, and how long a plan takes.

For each number of ranks, sequences with ``--tokens`` tokens a rank are drawn, and divided by each layout. Nothing is
exchanged: all figures but the time of a plan follow from lengths. A system is the busiest rank:

- ``pairs`` and ``tokens``: the most of a rank over the mean. Pairs are those of a query and a key that it sees.
- ``sent``: the most bytes that a rank sends in a layer, forward and backward, without anything recomputed.
- ``all-gather`` is the layout "chunks, all cut" if each rank sent its keys and values to all others.

Lengths: ``fixed:N``; ``tail:N`` is a Pareto law (alpha 1.1, at least 20) that is clipped at N; others as in
``sequence_balance``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from headway.nn import HSTUConfig
from headway.parallel.context_parallel import ChunksPlan, GroupBatch
from headway.parallel.context_parallel.layouts import ChunksLayout, GridLayout, HeadsLayout, Layout

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.sequence_balance import LengthLaw
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "plans of context parallelism for 2 to 64 ranks: evenness and traffic; exchanges nothing"

_ELEMENT_BYTES = 2  #: bfloat16.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("context_parallel", DESCRIPTION, ranks=(2, 4, 8, 16, 32, 64), rounds=3)
    parser.add_argument("--lengths", nargs="+", default=["fixed:4096", "tail:16384"], metavar="LAW",
                        help="fixed:N, tail:N, 600, 21k or a folder (default: fixed:4096 tail:16384)")  # fmt: skip
    for name, default, text in (
        ("--tokens", 8192, "of a rank"),
        ("--heads", 4, "of the attention"),
        ("--head-dim", 128, "columns of queries, keys and values in a head"),
        ("--dim", 512, "columns of the layer"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--targets", type=float, default=0.0, metavar="SHARE", help="of each sequence (default: 0)")
    return measure_and_report(
        "context_parallel", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each law of lengths, number of ranks and layout.

    Raises:
        BenchmarkError: there are no lengths of this name.
    """
    config = HSTUConfig.production(
        dim=options.dim, max_length=1 << 24, num_heads=options.heads, qk_dim=options.head_dim, v_dim=options.head_dim
    )
    points = []
    for law in options.lengths:
        for num_ranks in options.ranks:
            lengths = lengths_of(law, options.tokens * num_ranks)
            targets = (lengths * options.targets).astype(np.int64)
            batch = GroupBatch(lengths=lengths, num_targets=targets, samples_of_ranks=(len(lengths),))
            params = {"lengths": law, "ranks": num_ranks, "tokens": options.tokens, "targets": options.targets,
                      "heads": options.heads}  # fmt: skip
            points += [
                point_of(system, make, num_ranks, params, options.rounds)
                for system, make in layouts_of(batch, config, num_ranks)
            ]
    return points


def lengths_of(law: str, num_tokens: int) -> np.typing.NDArray[np.int64]:
    """Draws lengths with at least ``num_tokens`` tokens, and less than one sequence more."""
    kind, _, number = law.partition(":")
    if kind == "fixed" and number.isdigit():
        return np.full(max(num_tokens // int(number), 1), int(number))
    count = num_tokens // 20
    if kind == "tail" and number.isdigit():
        drawn = np.random.default_rng(num_tokens).pareto(1.1, size=count) * 150 + 20
        lengths = np.minimum(drawn.astype(np.int64), int(number))
    elif number:
        raise BenchmarkError(f"--lengths {law}: there are fixed:N, tail:N, 600, 21k and folders")
    else:
        lengths = LengthLaw.of(law, None).draw(count, seed=num_tokens).numpy()
    return lengths[: int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1]


def layouts_of(batch: GroupBatch, config: HSTUConfig, num_ranks: int) -> Iterator[tuple[str, Callable[[], Layout]]]:
    """Yields the layouts that the ranks can have: name, and a function that makes it."""
    if num_ranks <= config.num_heads:
        yield "heads", lambda: HeadsLayout(batch, config, num_ranks)
    yield "chunks", lambda: ChunksLayout(batch, config, num_ranks, "needed")
    yield "chunks, all cut", lambda: ChunksLayout(batch, config, num_ranks, "all")
    yield "all-gather", lambda: GatheredChunks(batch, config, num_ranks)
    shared = math.gcd(num_ranks, config.num_heads)
    if 1 < shared < num_ranks:
        shape = (shared, num_ranks // shared)
        yield f"grid({shape[0]}, {shape[1]})", lambda: GridLayout(batch, config, shape, "needed")


class GatheredChunks(ChunksLayout):
    """Chunks whose keys and values go to all ranks, whether they are seen or not."""

    def __init__(self, batch: GroupBatch, config: HSTUConfig, num_ranks: int) -> None:
        super().__init__(batch, config, num_ranks, "all")

    def bytes_sent(self, rank: int, element_bytes: int) -> tuple[int, int]:
        plan: ChunksPlan = self.plan
        columns = plan.config.num_heads * (plan.config.qk_dim + plan.config.v_dim)
        own = len(plan.tokens_of(rank))
        forward, backward = own * (plan.num_ranks - 1), plan.batch.num_tokens - own
        return forward * columns * element_bytes, backward * columns * 4


def point_of(system: str, make: Callable[[], Layout], num_ranks: int, params: dict[str, object], rounds: int) -> Point:
    """Returns the figures of a layout. The time is that of a rank's plan with all that its layers need."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        layout = make()
        layout.tokens_of(0)
        layout.exchange(0, None)
        seconds.append(time.perf_counter() - began)
    ranks = range(num_ranks)
    tokens = np.array([len(layout.tokens_of(rank)) for rank in ranks])
    sent = [sum(layout.bytes_sent(rank, _ELEMENT_BYTES)) for rank in ranks]
    evenness = {"pairs_excess": layout.imbalance, "tokens_excess": float(tokens.max() / tokens.mean())}
    return Point(
        name="context_parallel", params=params, system=system, median_s=statistics.median(seconds),
        p5_s=min(seconds), p95_s=max(seconds), samples=rounds, unit="s of a plan",
        extra=evenness | {"sent_bytes": max(sent)},
    )  # fmt: skip


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each law, number of ranks and layout."""
    rows = [
        (
            str(point.params["lengths"]),
            str(point.params["ranks"]),
            point.system,
            f"{point.extra['pairs_excess']:.4f}",
            f"{point.extra['tokens_excess']:.4f}",
            f"{point.extra['sent_bytes'] / 1e6:.1f} MB",
            format_time(point.median_s),
        )
        for point in points
    ]
    return format_table(("lengths", "ranks", "layout", "pairs", "tokens", "sent", "plan"), rows)
