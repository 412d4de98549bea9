# SPDX-License-Identifier: Apache-2.0
"""Times of requests by stage, from the traces that ``headway_serve --trace`` writes.

A trace has, for each batch, a slice ``batch N`` from when its requests left the queue until they were answered, then
the slices of its stages, and an event for the begin of each request. ``engine`` is what no stage accounts for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

STAGES = ("queue", "delay", "fetch", "dense queue", "dense", "engine", "total")


def stage_times(files: Iterable[Path], *, begin_s: float, end_s: float) -> dict[str, dict[str, float]]:
    """Returns the median and the 99% quantile of each stage, in microseconds.

    Args:
        files: traces of all ranks.
        begin_s, end_s: only requests that came within are counted, in seconds since 1970.

    Raises:
        ValueError: there is no such request.
    """
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for file in files:
        batch: dict[str, float] = {}
        taken = 0.0
        for event in json.loads(file.read_text())["traceEvents"]:
            name = event["name"]
            if event["ph"] == "X" and name.startswith("batch "):
                batch, taken = {"engine": event["dur"]}, event["ts"]
            elif event["ph"] == "X":
                batch[name] = event["dur"]
                batch["engine"] -= event["dur"]
            elif event["ph"] == "b" and begin_s * 1e6 <= event["ts"] <= end_s * 1e6:
                of_request = batch | {"queue": taken - event["ts"]}
                of_request["total"] = sum(of_request.values())
                for stage in STAGES:
                    times[stage].append(of_request[stage])
    if not times["total"]:
        raise ValueError("the traces have no request of that time")
    return {
        stage: {"p50_us": float(np.quantile(values, 0.5)), "p99_us": float(np.quantile(values, 0.99))}
        for stage, values in times.items()
    }


def stage_columns(found: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The same as fields of a point, such as ``dense_p50_us``."""
    return {
        f"{stage.replace(' ', '_')}_{quantile}": round(value, 1)
        for stage, values in found.items()
        for quantile, value in values.items()
    }
