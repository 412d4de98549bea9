# SPDX-License-Identifier: Apache-2.0
"""Writes the plots and a report: one HTML file that embeds tables and plots."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from dlrm_examples.dlrm_inference.plan import Plan
from dlrm_examples.dlrm_inference.reporting.headline import headline
from dlrm_examples.dlrm_inference.reporting.plots import plot_comparison, plot_waits
from dlrm_examples.dlrm_inference.reporting.result_table import EXPLANATIONS, HEADINGS, table_cells
from dlrm_examples.dlrm_inference.reporting.results import (
    ResultRow,
    bytes_per_lag,
    paper_bytes_per_lag,
)
from dlrm_examples.dlrm_inference.reporting.wait_report import collect_waits, wait_cells
from dlrm_examples.dlrm_inference.systems import SYSTEMS
from dlrm_examples.support.host_load import HostLoad
from dlrm_examples.support.provenance import current_commit, describe_machine


def write_report(
    plan: Plan, rows: Sequence[ResultRow], directory: Path, *, load: HostLoad | None, notes: Sequence[str], command: str
) -> None:
    """Writes ``report.html`` and one PNG file per plot into ``directory``.

    Args:
        plan: the plan that was run.
        rows: one result per workload, system and lag bound.
        directory: existing folder.
        load: load of the host during the runs; None if it is not known.
        notes: remarks on the data, such as malformed lines.
        command: command line that repeats the run.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    systems = dict.fromkeys(point.system for point in plan.points)
    page = environment.get_template("report.html.j2").render(
        plan=plan,
        sections=[_section(plan, index, rows, directory, load) for index in range(len(plan.workloads))],
        headings=HEADINGS,
        notes=notes,
        explanations=[*((name, SYSTEMS[name].description) for name in systems), *EXPLANATIONS.items()],
        machine=describe_machine(),
        commit=current_commit(),
        command=command,
    )
    (directory / "report.html").write_text(page, encoding="utf-8")


def _section(
    plan: Plan, index: int, all_rows: Sequence[ResultRow], directory: Path, load: HostLoad | None
) -> dict[str, Any]:
    """Values of the template for one workload."""
    workload = plan.workloads[index]
    rows = [row for row in all_rows if row.workload == index]
    name, stem = f"{workload.setting}, {workload.dataset}", f"{workload.setting}_{workload.dataset}"
    waits = collect_waits(rows)
    return {
        "name": name,
        "description": workload.conditions.description,
        "headline": headline(rows, load),
        # Points whose predictions are not bit-identical to those of the plan's first point.
        "different": [f"{row.point.system} k={row.point.max_lag}" for row in rows if not row.identical],
        "picture": _save(plot_comparison(rows, name), directory / f"{stem}.png"),
        "cells": table_cells(rows),
        # Memory per unit of k in bytes: tensors of pending steps by system, the paper's estimate for the same, and the
        # receive buffers of Headway. bytes_per_lag() is the slope over k, for systems measured with two bounds or more.
        "held": bytes_per_lag(rows, lambda row: row.held_bytes),
        "paper": paper_bytes_per_lag(plan, index),
        "reserved": bytes_per_lag(rows, lambda row: row.library_bytes),
        "waits": wait_cells(waits) if waits else None,
        "waits_picture": _save(plot_waits(waits), directory / f"{stem}_waits.png") if waits else None,
        # Number of blocks larger than a slot of Headway's receive buffers, over all ranks and bounds.
        # Their exchanges could not lag.
        "lost": sum(entry.lag_lost for entry in waits),
    }


def _save(png: bytes, path: Path) -> str:
    """Writes a picture to its file; returns it in base64, for the page."""
    path.write_bytes(png)
    return base64.b64encode(png).decode()
