# SPDX-License-Identifier: Apache-2.0
"""Formats results as text tables, for the terminal and the report.

The columns are those of Dichev et al., arXiv 2512.19342 (latency, throughput by k), and some that the paper lacks.
"sync" is the system of that name in ``systems.py``: synchronous DLRM. "replay" is the run that ``recurrence.py``
computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlrm_examples.dlrm_inference.reporting.metrics import Estimate
from dlrm_examples.dlrm_inference.reporting.results import ResultRow

HEADINGS = (
    "system",
    "k",
    "latency ms",
    "batches/s",
    "vs sync",
    "request ms",
    "p99 ms",
    "waiting ms",
    "vs replay",
    "held KB",
)

EXPLANATIONS = {
    "k": "the bound: how many steps a rank may leave pending",
    "latency ms": "time of a step, mean over runs and processes with its 95% interval (the metric of arXiv 2512.19342)",
    "batches/s": "mini-batches answered by all processes together, mean over runs with its 95% interval",
    "vs sync": "throughput divided by that of sync (synchronous DLRM) in the same runs",
    "request ms": "from the arrival of a mini-batch to its predictions; grows with k",
    "p99 ms": "99% quantile of the request times",
    "waiting ms": "time a rank waits for its peers, per step",
    "vs replay": "measured time divided by that of a replay of the same work and injected delays under the same bound, "
    "with exchanges that take no time",
    "held KB": "largest size of the tensors that pending steps keep alive on a rank",
}


def table_cells(rows: Sequence[ResultRow]) -> list[tuple[str, ...]]:
    """Formats each row as one tuple of cells in the order of ``HEADINGS``."""
    return [
        (
            row.point.system,
            str(row.point.max_lag),
            _milliseconds(row.latency),
            f"{row.throughput.mean:.1f} ± {row.throughput.half_width:.1f}",
            "" if row.speedup is None else f"{row.speedup.mean:.2f}x",
            f"{row.request_latency.mean * 1e3:.2f}",
            f"{row.request_latency_p99 * 1e3:.2f}",
            f"{row.waiting.mean * 1e3:.2f}",
            f"{row.replay_ratio.mean:.3f}",
            f"{row.held_bytes / 1e3:.0f}",
        )
        for row in rows
    ]


def _milliseconds(value: Estimate) -> str:
    return f"{value.mean * 1e3:.2f} ± {value.half_width * 1e3:.2f}"
