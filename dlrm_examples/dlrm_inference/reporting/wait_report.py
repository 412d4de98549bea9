# SPDX-License-Identifier: Apache-2.0
"""Waiting times by rank, peer and lag, from ``headway.stats`` of each rank.

The lag of an exchange is the number of later exchanges that were posted when it completed. The bound (``max_lag``, k in
the table) is the largest lag that a rank may have. A block is what one rank sends to another in an exchange; a slot is
the receive buffer of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlrm_examples.dlrm_inference.reporting.results import ResultRow


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Waits of all ranks with one bound.

    Attributes:
        max_lag: the bound.
        seconds: (ranks, ranks) time that each rank (row) waited for each peer (column).
        lag_histogram: (ranks, lags) entry (r, i): exchanges that rank r completed while i later ones were posted.
        seconds_by_lag: (ranks, lags) time that each rank waited at that lag.
        lag_lost: number of blocks larger than a slot that all ranks sent with ``max_lag`` above 0. Their transfer needs
            the receiver, so the exchange cannot lag.
    """

    max_lag: int
    seconds: npt.NDArray[np.float64]
    lag_histogram: npt.NDArray[np.int64]
    seconds_by_lag: npt.NDArray[np.float64]
    lag_lost: int


def collect_waits(rows: Sequence[ResultRow]) -> list[Waits]:
    """One entry per bound of the system over Headway; none on GPUs, where the host does not wait."""
    return [_waits(row) for row in rows if any(sum(of_rank["lag_histogram"]) for of_rank in row.stats.values())]


def _waits(row: ResultRow) -> Waits:
    ranks = sorted(row.stats)
    seconds = np.zeros((len(ranks), len(ranks)))
    for rank in ranks:
        for peer, of_peer in row.stats[rank]["peers"].items():
            seconds[rank, int(peer)] = float(of_peer["wait_s"])
    counts = [row.stats[rank]["lag_histogram"] for rank in ranks]
    seconds_by_lag = [row.stats[rank]["wait_s_by_lag"] for rank in ranks]
    num_lags = max(len(line) for line in [*counts, *seconds_by_lag])  # each list ends at the largest lag that occurred
    return Waits(
        max_lag=row.point.max_lag,
        seconds=seconds,
        lag_histogram=_padded(counts, num_lags).astype(np.int64),
        seconds_by_lag=_padded(seconds_by_lag, num_lags),
        lag_lost=sum(int(row.stats[rank]["lag_lost"]) for rank in ranks),
    )


def _padded(lines: Sequence[Sequence[float]], width: int) -> npt.NDArray[np.float64]:
    """Stacks lists of different lengths into one array, padded with zeros to ``width``."""
    return np.array([[*line, *[0.0] * (width - len(line))] for line in lines], dtype=np.float64)


def wait_cells(waits: Sequence[Waits]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns headings, and one line per bound and rank: ms waited for each peer, then exchanges / ms at each lag."""
    num_ranks = len(waits[0].seconds)
    num_lags = max(entry.lag_histogram.shape[1] for entry in waits)
    peers = [f"for rank {peer}" for peer in range(num_ranks)]
    headings = ("rank", "k", *peers, *(f"at lag {lag}" for lag in range(num_lags)))
    cells = []
    for entry in waits:
        for rank in range(num_ranks):
            waited = ("-" if peer == rank else f"{entry.seconds[rank, peer] * 1e3:.1f}" for peer in range(num_ranks))
            at_lags = [
                f"{count} / {seconds * 1e3:.1f}"
                for count, seconds in zip(entry.lag_histogram[rank], entry.seconds_by_lag[rank], strict=True)
            ]
            missing = [""] * (num_lags - len(at_lags))
            cells.append((str(rank), str(entry.max_lag), *waited, *at_lags, *missing))
    return headings, cells
