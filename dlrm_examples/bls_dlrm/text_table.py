"""Formats results as text tables, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Sequence

from dlrm_examples.bls_dlrm.metrics import Estimate
from dlrm_examples.bls_dlrm.results import ResultRow

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
    "latency ms": "time of a step, mean over runs and processes with its 95% interval (the paper's metric)",
    "batches/s": "mini-batches answered by all processes together, mean over runs with its 95% interval",
    "vs sync": "throughput over that of sync in the same runs",
    "request ms": "from the arrival of a mini-batch to its predictions; grows with k",
    "p99 ms": "99% quantile of the same",
    "waiting ms": "time a rank waits for its peers, per step",
    "vs replay": "measured time over the least possible one for the same delays, work and bound",
    "held KB": "most memory that pending steps keep alive on a rank",
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


def format_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Formats a table: the first column aligned left, the others right."""
    lines = [tuple(headings), *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def headline(rows: Sequence[ResultRow]) -> str:
    """One sentence: the best speedup over the synchronous system, or that there is none."""
    candidates = [row for row in rows if row.speedup is not None and row.point.system != "sync"]
    if not candidates:
        return "The synchronous system was not measured, so there is nothing to compare with."
    best = max(candidates, key=lambda row: row.speedup.mean if row.speedup is not None else 0.0)
    assert best.speedup is not None
    name = f"{best.point.system} with k = {best.point.max_lag}"
    if best.speedup.low > 1.0:
        return (
            f"{name} answers {best.speedup.mean:.2f} times as many batches per second as synchronous DLRM "
            f"(95% interval {best.speedup.low:.2f} to {best.speedup.high:.2f})."
        )
    return (
        f"No system is clearly faster than synchronous DLRM here; the best is {name} at {best.speedup.mean:.2f} times "
        f"its throughput (95% interval {best.speedup.low:.2f} to {best.speedup.high:.2f})."
    )


def _milliseconds(value: Estimate) -> str:
    return f"{value.mean * 1e3:.2f} ± {value.half_width * 1e3:.2f}"
