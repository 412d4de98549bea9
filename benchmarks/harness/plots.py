# SPDX-License-Identifier: Apache-2.0
"""PNG plots of points: lines of the median time, or of another number, over a parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.points import Point

_COLORS = {"headway": "#1565c0", "openmpi": "#d17b0f", "gloo": "#6a8f3c", "memcpy": "#888888"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes. ``label(point)`` names the line of a point, and ``x(point)`` is its position."""

    title: str
    points: Sequence[Point]
    x: Callable[[Point], float]
    x_label: str
    label: Callable[[Point], str] = lambda point: point.system
    y: Callable[[Point], float | None] = lambda point: None if point.median_s is None else point.median_s * 1e6
    y_label: str = "time of a call (us)"
    log_y: bool = True
    log_x: bool = True


def split_panels(
    points: Sequence[Point],
    *by: str,
    title: str,
    x: str | Callable[[Point], float],
    x_label: str | None = None,
    **options: Any,
) -> list[Panel]:
    """One panel for each combination of the parameters ``by``.

    Args:
        title: a format string of parameters, such as ``"{ranks} ranks"``.
        x: a parameter, or the position of a point.
        x_label: by default the name of the parameter.
        options: further fields of the panels.
    """
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(point.params[name] for name in by)].append(point)
    position = (lambda point: float(point.params[x])) if isinstance(x, str) else x
    label = x_label or str(x).replace("_", " ")
    return [
        Panel(title=title.format(**group[0].params), points=group, x=position, x_label=label, **options)
        for group in groups.values()
    ]


def save_plot(path: Path, panels: Sequence[Panel]) -> bool:
    """Writes ``path`` with the panels side by side. Returns False and prints a note if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no plots: matplotlib is not installed")
        return False
    figure = Figure(figsize=(5.2 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)  # Draws without a display.
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, points in _lines(panel).items():
            color = _COLORS.get(label)
            axes.plot([panel.x(point) for point in points], [panel.y(point) for point in points], "o-", ms=3.5,
                      color=color, label=label)  # fmt: skip
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.log_y:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}")
    return True


def _lines(panel: Panel) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = defaultdict(list)
    for point in sorted(panel.points, key=panel.x):
        if panel.y(point) is not None:
            lines[panel.label(point)].append(point)
    return lines
