# SPDX-License-Identifier: Apache-2.0
"""Final report: prediction quality, its difference from static tables, growth and contents of the embedding tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from dlrm_examples.streaming_ctr.evaluation import Quality
from dlrm_examples.streaming_ctr.results import Run
from dlrm_examples.support.text_table import format_table

# Names of systems with which the others are compared: static tables, and dynamic tables without limits.
REFERENCE = "static"
UNLIMITED = "dynamic"
# Columns of the table that shows what tables hold: field of TableUse, heading. Pending ids were looked up too rarely
# for a row. Refused lookups got no row because of a limit.
_USE_COLUMNS = {
    "rows": "rows",
    "cold_rows": "in bfloat16",
    "pending": "pending",
    "evicted": "evicted",
    "refused": "refused",
}


def report(runs: Sequence[Run]) -> str:
    """Formats the report as text tables. Each has one line per system, with means over the system's seeds."""
    by_system = {name: [run for run in runs if run.name == name] for name in dict.fromkeys(run.name for run in runs)}
    # Smoothed rates have no tables, so no use.
    trained = {name: of_system for name, of_system in by_system.items() if of_system[0].use is not None}
    parts = [_quality_table(by_system)]
    others = {name: of_system for name, of_system in trained.items() if name != REFERENCE}
    if REFERENCE in trained and others:
        parts += [f"Difference from {REFERENCE}, mean over seeds", _difference_table(by_system[REFERENCE], others)]
    parts += ["Tables at the end of the training, all ranks together", _use_table(trained)]
    parts += ["Rows after each tenth of the training", _growth_table(trained)]
    return "\n\n".join(parts)


def _metrics(run: Run) -> list[tuple[str, str]]:
    """Returns the pairs of a label (of the examples) and a metric. GAUC is left out if the data set has no users."""
    return [
        (label, metric)
        for label, quality in run.quality.items()
        for metric in Quality._fields
        if getattr(quality, metric) is not None
    ]


def _values(runs: Sequence[Run], label: str, metric: str) -> list[float]:
    return [getattr(run.quality[label], metric) for run in runs]


def _quality_table(by_system: dict[str, list[Run]]) -> str:
    metrics = _metrics(next(iter(by_system.values()))[0])
    lines = [
        (
            name,
            str(len(runs)),
            *(_spread(_values(runs, label, metric)) for label, metric in metrics),
            f"{statistics.mean(run.train_s for run in runs):.1f}",
        )
        for name, runs in by_system.items()
    ]
    return format_table(("system", "runs", *(f"{label} {metric}" for label, metric in metrics), "train s"), lines)


def _difference_table(reference: Sequence[Run], others: dict[str, list[Run]]) -> str:
    metrics = _metrics(reference[0])
    lines = [
        (
            name,
            *(
                f"{statistics.mean(_values(runs, *metric)) - statistics.mean(_values(reference, *metric)):+.4f}"
                for metric in metrics
            ),
        )
        for name, runs in others.items()
    ]
    return format_table(("system", *(f"{label} {metric}" for label, metric in metrics)), lines)


def _use_table(by_system: dict[str, list[Run]]) -> str:
    """Formats the contents of the embedding tables.

    The last column compares their bytes with those of ``UNLIMITED``, if ``by_system`` has it.
    """
    whole = _mean_use(by_system[UNLIMITED])["num_bytes"] if UNLIMITED in by_system else None
    lines = []
    for name, runs in by_system.items():
        use = _mean_use(runs)
        cells = [f"{use[column]:.0f}" for column in _USE_COLUMNS] + [f"{use['num_bytes'] / 1e6:.2f}"]
        if whole is not None:
            cells.append(f"{use['num_bytes'] / whole - 1:+.0%}")
        lines.append((name, *cells))
    headings = ["system", *_USE_COLUMNS.values(), "MB"] + ([] if whole is None else [f"vs {UNLIMITED}"])
    return format_table(headings, lines)


def _mean_use(runs: Sequence[Run]) -> dict[str, float]:
    uses = [asdict(run.use) for run in runs if run.use is not None]
    return {column: statistics.mean(use[column] for use in uses) for column in uses[0]}


def _growth_table(by_system: dict[str, list[Run]]) -> str:
    lines = [
        (name, *(f"{statistics.mean(rows):.0f}" for rows in zip(*(run.rows for run in runs), strict=True)))
        for name, runs in by_system.items()
    ]
    num_counts = len(lines[0]) - 1
    return format_table(("system", *(f"{100 * count // num_counts}%" for count in range(1, num_counts + 1))), lines)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{deviation}"
