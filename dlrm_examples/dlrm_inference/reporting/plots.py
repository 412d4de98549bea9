# SPDX-License-Identifier: Apache-2.0
"""Plots of one workload over the lag bound k: latency, throughput, request latency, ratio to the least time; waits."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dlrm_examples.dlrm_inference.reporting.metrics import Estimate
from dlrm_examples.dlrm_inference.reporting.results import ResultRow
from dlrm_examples.dlrm_inference.reporting.wait_report import Waits

_COLORS = {"sync": "#555555", "bls-gloo": "#d17b0f", "bls-headway": "#1565c0"}
_MARKERS = {"sync": "", "bls-gloo": "s", "bls-headway": "o"}


def plot_comparison(rows: Sequence[ResultRow], title: str) -> bytes:
    """Plots four panels over the bound k with 95% intervals; the horizontal line is the synchronous system.

    Returns:
        a PNG file.
    """
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = figure.subplots(2, 2).flat
    _draw(next(panels), rows, "latency of a step (ms)", lambda row: _scaled(row.latency, 1e3))
    _draw(next(panels), rows, "throughput (batches/s)", lambda row: row.throughput)
    _draw(next(panels), rows, "request latency (ms)", lambda row: _scaled(row.request_latency, 1e3))
    _draw(next(panels), rows, "measured / least possible time", lambda row: row.replay_ratio)
    figure.suptitle(title)
    return _to_png(figure)


def plot_waits(waits: Sequence[Waits]) -> bytes:
    """Plots for each bound a heat map of which rank waited for which, and below it the histogram of lag.

    The lag of an exchange is the number of later exchanges that were posted when it completed.

    Returns:
        a PNG file.
    """
    figure = Figure(figsize=(2.6 * max(2, len(waits)), 5), layout="constrained")
    maps, bars = figure.subplots(2, len(waits), squeeze=False)
    highest = max(float(entry.seconds.max()) for entry in waits) * 1e3 or 1.0
    for axes, entry in zip(maps, waits, strict=True):
        image = axes.imshow(entry.seconds * 1e3, vmin=0, vmax=highest, cmap="Blues")
        axes.set_title(f"k = {entry.max_lag}")
        axes.set_xlabel("waited for rank")
        axes.set_xticks(range(len(entry.seconds)))
        axes.set_yticks(range(len(entry.seconds)))
    maps[0].set_ylabel("rank")
    figure.colorbar(image, ax=list(maps), label="ms, all runs")
    for axes, entry in zip(bars, waits, strict=True):
        totals = entry.lag_histogram.sum(axis=0)
        axes.bar(range(len(totals)), totals, color=_COLORS["bls-headway"])
        axes.set_xlabel("lag")
        axes.set_xticks(range(len(totals)))
    bars[0].set_ylabel("exchanges")
    return _to_png(figure)


def _draw(axes: Axes, rows: Sequence[ResultRow], label: str, value: Callable[[ResultRow], Estimate]) -> None:
    by_system: dict[str, list[ResultRow]] = defaultdict(list)
    for row in rows:
        by_system[row.point.system].append(row)
    for system, of_system in by_system.items():
        values = [value(row) for row in of_system]
        color = _COLORS.get(system)
        if system == "sync":
            axes.axhline(values[0].mean, color=color, linestyle="--", label=system)
            axes.axhspan(values[0].low, values[0].high, color=color, alpha=0.12, linewidth=0)
            continue
        axes.errorbar(
            [row.point.max_lag for row in of_system],
            [entry.mean for entry in values],
            yerr=[entry.half_width for entry in values],
            color=color,
            marker=_MARKERS.get(system, "^"),
            capsize=3,
            label=system,
        )
    axes.set_xlabel("bound k")
    axes.set_xticks(sorted({row.point.max_lag for row in rows}))
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()


def _scaled(value: Estimate, factor: float) -> Estimate:
    return Estimate(value.mean * factor, value.half_width * factor)


def _to_png(figure: Figure) -> bytes:
    target = io.BytesIO()
    FigureCanvasAgg(figure)  # attaches itself to the figure, so no display is needed
    figure.savefig(target, format="png")
    return target.getvalue()
