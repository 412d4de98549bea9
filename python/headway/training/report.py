# SPDX-License-Identifier: Apache-2.0
"""``write_report``: one HTML page about a training, from the lines of its ``results.jsonl``.

A line is a JSON object whose ``kind`` is ``progress`` or ``quality``. A training that was resumed at an earlier step
than its last line has some steps twice. The later lines count.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.training.config import TrainingConfig

Row = Mapping[str, Any]

#: Field of ``LabelQuality`` -> heading of its column.
_METRICS = {
    "auc": "AUC",
    "gauc": "GAUC",
    "gauc_by_clicks": "by clicks",
    "gauc_unweighted": "unweighted",
    "normalized_entropy": "normalized entropy",
    "num_targets": "targets",
    "num_positive": "positive",
}


@dataclass(frozen=True)
class Results:
    """The lines of a training.

    Attributes:
        progress: fields of ``Progress``, by ascending step.
        quality: fields of ``LabelQuality`` by label, of the last evaluation.
    """

    progress: Sequence[Row]
    quality: Mapping[str, Row]


def read_results(path: Path) -> Results:
    """Reads ``results.jsonl``. A line that was cut, by a kill or a full disk, is left out."""
    progress: list[Row] = []
    quality: dict[str, Row] = {}
    for row in _rows(path.read_text(encoding="utf-8").splitlines()):
        if row.get("kind") == "progress":
            while progress and progress[-1]["step"] >= row["step"]:
                progress.pop()
            progress.append(row)
        elif row.get("kind") == "quality":
            quality[row["label"]] = row
    return Results(progress, quality)


def _rows(lines: Iterable[str]) -> Iterable[Row]:
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict):
            yield row


def write_report(config: TrainingConfig, out: Path, *, ranks: str) -> Path:
    """Writes ``report.html`` from ``results.jsonl``, both in folder ``out``; returns its path.

    Args:
        config: settings of the training.
        out: folder of the training.
        ranks: number and kind of the ranks.

    Raises:
        ImportError: matplotlib or jinja2 is not installed.
        OSError: a file cannot be read or written.
    """
    import jinja2

    results = read_results(out / "results.jsonl")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("report.html.j2").render(
        ranks=ranks,
        last=results.progress[-1] if results.progress else None,
        plot=base64.b64encode(_plot(results.progress)).decode() if results.progress else None,
        figures=_figures(results.progress),
        metrics=list(_METRICS.values()),
        quality={label: [_cell(row[name]) for name in _METRICS] for label, row in results.quality.items()},
        reasons=[f"{label}: {row['reason']}" for label, row in results.quality.items() if row["reason"]],
        settings=config.toml(),
    )
    path = out / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _figures(progress: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns names and values of the figures of the last line, without those that are not known."""
    if not progress:
        return []
    last = progress[-1]
    values = [
        ("tokens per second", f"{last['tokens_per_s']:,.0f}"),
        ("floating-point operations per second", _scaled(last["flops_per_s"], 1e-9, " G")),
        ("wait for input", _scaled(last["input_wait"], 100, "%")),
        ("idle time of ranks", _scaled(last["idle"], 100, "%")),
        ("waits for exchanges of tables", _scaled(last["exchange_wait"], 100, "%")),
        ("slowest rank", None if last["slowest_rank"] is None else str(last["slowest_rank"])),
        *_of_balance(last.get("balance")),
        ("collisions among rows read ahead", _scaled(last.get("collision_share"), 100, "%")),
        ("waits for parameter servers", _scaled(last.get("server_wait"), 100, "%")),
        ("steps whose updates lookups lacked", _scaled(last.get("staleness"), 1, "")),
        ("rows of tables", f"{last['rows']:,}"),
        ("rows evicted", f"{last['evictions']:,}"),
        ("samples truncated", f"{sum(each['truncated'] for each in progress):,}"),
        ("steps skipped for overflow", f"{last['skipped_steps']:,}"),
    ]
    return [(name, value) for name, value in values if value is not None]


def _of_balance(balance: Row | None) -> list[tuple[str, str | None]]:
    if balance is None:
        return []
    names = {
        "planned_idle": "planned idle time of ranks",
        "unbalanced_idle": "idle time without the plan",
        "measured_idle": "idle time by the times that ranks computed",
        "idle_tokens": "tokens that ranks lack to the most of any",
        "idle_samples": "samples that ranks lack to the most of any",
        "moved": "samples that move",
    }
    return [(text, _scaled(balance.get(name), 100, "%")) for name, text in names.items()]


def _scaled(value: float | None, factor: float, unit: str) -> str | None:
    return None if value is None else f"{factor * value:,.1f}{unit}"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _plot(progress: Sequence[Row]) -> bytes:
    """Plots losses by head, tokens per second and waits over steps; returns a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # Draws without a display.
    losses, speed, wait = figure.subplots(1, 3)
    steps = [row["step"] for row in progress]
    for head in progress[-1]["losses"]:
        losses.plot(steps, [row["losses"].get(head) for row in progress], label=head)
    losses.legend()
    speed.plot(steps, [row["tokens_per_s"] for row in progress])
    wait.plot(steps, [100 * row["input_wait"] for row in progress], label="for input")
    if progress[-1]["idle"] is not None:
        wait.plot(steps, [100 * (row["idle"] or 0) for row in progress], label="for other ranks")
    if progress[-1].get("server_wait") is not None:
        wait.plot(steps, [100 * (row.get("server_wait") or 0) for row in progress], label="for servers")
    wait.legend()
    for axes, title in ((losses, "mean loss"), (speed, "tokens/s of all ranks"), (wait, "waits (% of time)")):
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
    speed.set_ylim(bottom=0)
    wait.set_ylim(bottom=0)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120)
    return png.getvalue()
