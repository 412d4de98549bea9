# SPDX-License-Identifier: Apache-2.0
"""Bytes and lookups that deduplication before and after the exchange saves, by the number of ranks.

Everything is counted: nothing is timed and no rank is started. The batches of all ranks go, one after the other,
through the deduplication and routing functions of ``headway.embedding``. The four settings are those of figure 16 of
the MTGRBoost paper: ``none``, ``first`` (before the exchange), ``second`` (after it, at the owner) and ``both``. The
owner of an id is the rank that stores its row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from headway.embedding.keys import Deduplicator, Keys, ThreadPool, from_unique, route, table_id_of

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_bytes, format_table

DESCRIPTION = "bytes and lookups that two-stage deduplication saves, counted; times nothing"

DEDUPS = ("none", "first", "second", "both")
KEY_BYTES = 16  # Bytes of a key in the exchange: id, table and count of its duplicates.


@dataclass(frozen=True)
class Traffic:
    """Traffic of a forward and backward pass as the mean over ranks. It leaves out what a rank sends to itself."""

    id_bytes: float
    vector_bytes: float  # Bytes of embeddings in the forward pass. Gradients take as many in the backward pass.
    lookups: float  # Lookups of an owner in its tables.


def count_traffic(ids_RK: Sequence[torch.Tensor], *, dim: int, dedup: str, table: str = "items") -> Traffic:
    """Counts the traffic of lookups in one table named ``table``, whose embeddings have ``dim`` float32 values.

    ``ids_RK`` has one (K,) int64 tensor per rank: the ids of its batch.

    Raises:
        ValueError: ``dedup`` is none of ``DEDUPS``.
    """
    if dedup not in DEDUPS:
        raise ValueError(f"dedup must be one of {', '.join(DEDUPS)}, not {dedup!r}")
    num_ranks = len(ids_RK)
    deduplicator = Deduplicator(ThreadPool(1))
    table_id = table_id_of(table)
    received: list[list[torch.Tensor]] = [[] for _ in ids_RK]
    sent = 0
    for rank, ids in enumerate(ids_RK):
        unique = (
            deduplicator.deduplicate(Keys(ids, table=table_id))
            if dedup in ("first", "both")
            else from_unique(Keys(ids, table=table_id))
        )
        # ``order`` sorts the keys by owner; each rank owns counts_R of them.
        order, counts_R = route(unique.keys, num_ranks)
        counts = counts_R.tolist()
        sent += len(unique) - counts[rank]
        for owner, part in enumerate(unique.keys.ids[order].split(counts)):
            received[owner].append(part)
    if dedup in ("second", "both"):
        lookups = sum(len(deduplicator.deduplicate(Keys(torch.cat(parts), table=table_id))) for parts in received)
    else:
        lookups = sum(len(part) for parts in received for part in parts)
    return Traffic(sent * KEY_BYTES / num_ranks, sent * dim * 4 / num_ranks, lookups / num_ranks)


def draw_batches(*, num_ranks: int, keys: int, num_ids: int, exponent: float, seed: int) -> list[torch.Tensor]:
    """Draws one batch of ids per rank: (K,) int64, with the same popularity of ids on all ranks."""
    random = np.random.default_rng(seed)
    return [
        torch.from_numpy(draw_zipf(random, num_values=num_ids, exponent=exponent, size=keys)) for _ in range(num_ranks)
    ]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("dedup_traffic", DESCRIPTION, ranks=(4, 16, 32, 64))
    parser.add_argument(
        "--keys", type=whole_number(1), default=76_000, help="of a rank and step (default: %(default)s)"
    )
    parser.add_argument("--ids", type=whole_number(1), default=50_000_000, help="different ones (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.05, help="of their popularity (default: %(default)s)")
    parser.add_argument(
        "--dim", type=whole_number(1), nargs="+", default=[32, 256, 2048], help="(default: %(default)s)"
    )
    return measure_and_report(
        "dedup_traffic", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Counts a point for each number of ranks, dim and setting of deduplication."""
    points = []
    for num_ranks in options.ranks:
        batches = draw_batches(
            num_ranks=num_ranks, keys=options.keys, num_ids=options.ids, exponent=options.exponent, seed=num_ranks
        )
        for dedup in DEDUPS:
            for dim in options.dim:
                traffic = count_traffic(batches, dim=dim, dedup=dedup)
                params = {
                    "ranks": num_ranks, "keys": options.keys, "ids": options.ids,
                    "exponent": options.exponent, "dim": dim,
                }  # fmt: skip
                sent = traffic.id_bytes + 2 * traffic.vector_bytes
                points.append(
                    Point(
                        name="dedup_traffic", params=params, system=dedup, median_s=None, p5_s=None, p95_s=None,
                        samples=1, rate=sent, unit="bytes sent by a rank in a step",
                        extra={"id_bytes": traffic.id_bytes, "vector_bytes": traffic.vector_bytes,
                               "lookups": traffic.lookups},
                    )
                )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row per number of ranks and dim, with bytes and, in brackets, lookups of each setting."""
    by_key: dict[object, dict[str, Point]] = {}
    for point in points:
        by_key.setdefault(point.key, {})[point.system] = point
    rows = []
    for systems in by_key.values():
        params, none, both = systems["none"].params, systems["none"], systems["both"]
        cells = [f"{format_bytes(int(p.rate or 0))} ({p.extra['lookups']:,.0f})" for p in (systems[d] for d in DEDUPS)]
        saved = (none.rate or 0) / (both.rate or 1)
        rows.append((str(params["ranks"]), str(params["dim"]), *cells, f"{saved:.2f}"))
    return format_table(("ranks", "dim", *DEDUPS, "none / both"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    title, y_label = "bytes sent by a rank, dim {dim}", "bytes sent by a rank in a step"
    return split_panels(points, "dim", title=title, x="ranks", y=lambda point: point.rate, y_label=y_label)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
