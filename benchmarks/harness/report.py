# SPDX-License-Identifier: Apache-2.0
"""Measures, prints, saves and plots the points of a benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.plots import Panel, save_plot
from benchmarks.harness.points import Point, fields_of
from dlrm_examples.support.provenance import write_json_lines


def measure_and_report(
    name: str,
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    *,
    measure: Callable[[argparse.Namespace], Sequence[Point]],
    format_points: Callable[[Sequence[Point]], str],
    panels: Callable[[Sequence[Point]], list[Panel]] = lambda points: [],
) -> int:
    """Measures, prints the table, and saves the points (``--json``) and a plot of the panels (``NAME.png`` in
    ``--out``). By default there are no panels: where each line has few numbers, the table says it all.

    Returns:
        the exit status: 1, after one line that says why, if the measurement failed.
    """
    try:
        points = measure(options)
    except BenchmarkError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(format_points(points))
    if options.json is not None:
        write_json_lines(options.json, map(fields_of, points))
    if drawn := panels(points):
        save_plot(options.out / f"{name}.png", drawn)
    return 0
