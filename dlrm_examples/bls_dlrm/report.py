"""Writes the plots and a report: one HTML file that embeds tables and plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from dlrm_examples.bls_dlrm.plan import Plan
from dlrm_examples.bls_dlrm.plots import plot_comparison, plot_waits
from dlrm_examples.bls_dlrm.results import (
    ResultRow,
    bytes_per_lag,
    current_commit,
    describe_machine,
    paper_bytes_per_lag,
)
from dlrm_examples.bls_dlrm.systems import SYSTEMS
from dlrm_examples.bls_dlrm.text_table import EXPLANATIONS, HEADINGS, headline, table_cells
from dlrm_examples.bls_dlrm.wait_report import collect_waits, wait_cells

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .8em; text-align: right; }
th { border-bottom: 2px solid #999; } td { border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; } img { max-width: 100%; } .lead { font-size: 1.2em; }
.warning { color: #b00020; } dt { font-weight: bold; } code { background: #f2f2f2; padding: 0 .2em; }
"""


def write_report(plan: Plan, rows: Sequence[ResultRow], directory: Path, *, notes: Sequence[str], command: str) -> None:
    """Writes ``report.html`` and one PNG file per plot into ``directory``.

    Args:
        plan: the plan that was run.
        rows: results.
        directory: existing folder.
        notes: remarks on the data, such as malformed lines.
        command: command line that repeats the run.
    """
    sections = []
    for index in range(len(plan.workloads)):
        of_workload = [row for row in rows if row.workload == index]
        sections.append(_workload_section(plan, index, of_workload, directory))
    body = [
        "<h1>DLRM inference with bounded lag</h1>",
        *sections,
        *(f"<p class='warning'>{html.escape(note)}</p>" for note in notes),
        _method_section(plan, command),
    ]
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>DLRM inference with bounded lag</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    (directory / "report.html").write_text(page, encoding="utf-8")


def _workload_section(plan: Plan, index: int, rows: Sequence[ResultRow], directory: Path) -> str:
    workload = plan.workloads[index]
    name = f"{workload.setting}, {workload.dataset}"
    stem = f"{workload.setting}_{workload.dataset}"
    parts = [
        f"<h2>{html.escape(name)}</h2>",
        f"<p>{html.escape(workload.conditions.description)}; {plan.num_ranks} processes, mini-batches of "
        f"{plan.mini_batch} rows, {plan.num_steps} steps, {plan.num_runs} runs.</p>",
        f"<p class='lead'>{html.escape(headline(rows))}</p>",
        _identity_line(rows),
        _picture(plot_comparison(rows, name), directory / f"{stem}.png"),
        _html_table(HEADINGS, table_cells(rows)),
        _memory_lines(plan, index, rows),
    ]
    waits = collect_waits(rows)
    if waits:
        parts += [
            "<h3>Who waited for whom</h3>",
            "<p>For each rank and bound: milliseconds over all runs that it waited for each peer, and at each lag how "
            "many exchanges completed and for how many milliseconds it waited then. The lag is the number of later "
            "exchanges that the rank had started. From <code>headway.stats(group)</code>.</p>",
            _picture(plot_waits(waits), directory / f"{stem}_waits.png"),
            _html_table(*wait_cells(waits)),
        ]
        lost = sum(entry.lag_lost for entry in waits)
        if lost:
            parts.append(f"<p class='warning'>{lost} exchanges did not fit a slot and lost their lag.</p>")
    return "".join(parts)


def _identity_line(rows: Sequence[ResultRow]) -> str:
    if all(row.identical for row in rows):
        return "<p>All predictions are bit-identical over all systems and bounds.</p>"
    wrong = ", ".join(f"{row.point.system} k={row.point.max_lag}" for row in rows if not row.identical)
    return f"<p class='warning'>Predictions differ: {html.escape(wrong)}.</p>"


def _memory_lines(plan: Plan, index: int, rows: Sequence[ResultRow]) -> str:
    held = bytes_per_lag(rows, lambda row: row.held_bytes)
    if not held:
        return ""
    paper = paper_bytes_per_lag(plan, index) / 1e3
    measured = ", ".join(f"{system} {slope / 1e3:.0f} KB" for system, slope in held.items())
    lines = (
        f"Memory per unit of k and process, tensors of pending steps: {measured}; the paper's estimate "
        f"(s b tables + s<sup>2</sup> + b) is {paper:.0f} KB. Rows are held twice, as sent and as received, which the "
        "estimate counts once."
    )
    for system, slope in bytes_per_lag(rows, lambda row: row.library_bytes).items():
        lines += f" On top of that, {system} reserves {slope / 1e3:.0f} KB of slots per unit of k."
    return f"<p>{lines}</p>"


def _method_section(plan: Plan, command: str) -> str:
    systems = dict.fromkeys(point.system for point in plan.points)
    entries = "".join(
        f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>"
        for term, text in [*((name, SYSTEMS[name].description) for name in systems), *EXPLANATIONS.items()]
    )
    return (
        f"<h2>How to read this</h2><dl>{entries}</dl><p>The points of a run are measured in random order, with the "
        "same delays for all of them. Data is loaded before the clock starts; no collective is called in the loop "
        f"but the exchange.</p><p>Machine: {html.escape(describe_machine())}. Commit: {html.escape(current_commit())}. "
        f"Command: <code>{html.escape(command)}</code></p>"
    )


def _picture(png: bytes, path: Path) -> str:
    path.write_bytes(png)
    return f"<img alt='{html.escape(path.stem)}' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"


def _html_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>" for line in cells)
    return f"<table><tr>{head}</tr>{body}</table>"
