# SPDX-License-Identifier: Apache-2.0
"""Aggregates the reports of the ranks into one row per workload, system and lag bound (``max_lag``, the paper's k).

The paper is arXiv 2512.19342.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlrm_examples.dlrm_inference.measurement import GroupStats, Measurement
from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.dlrm_inference.plan import Plan, Point
from dlrm_examples.dlrm_inference.recurrence import replay
from dlrm_examples.dlrm_inference.reporting.metrics import (
    Estimate,
    batch_latency,
    estimate,
    estimated_bytes_per_lag,
    throughput,
)

REFERENCE_SYSTEM = "sync"


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """Result of one workload, system and lag bound; times in seconds.

    Attributes:
        num_samples: number of runs times number of processes.
        latency: time of a step, the paper's metric; mean over runs and processes.
        latency_quantiles: 5%, 50% and 95% quantiles of the same samples.
        throughput: mini-batches per second of all processes together; mean over runs.
        run_rates: throughput of each run. All points of a run get the same injected delays, so rates pair by run.
        speedup: throughput divided by that of the synchronous system in the same runs; None if it was not measured.
        request_latency: time from the arrival of a mini-batch to its predictions; mean over runs and processes.
        request_latency_p99: 99% quantile over all requests.
        waiting: time in waits per step; mean over runs and processes.
        posting: time per step in the calls that start exchanges; mean over runs and processes.
        replay_ratio: measured time divided by the least time that the same work needs under the bound, for all ranks
            together; mean over runs.
        held_bytes: largest size of the tensors that pending steps kept alive on a rank.
        library_bytes: largest receive buffer that Headway reserves on a rank; None for other systems.
        bytes_per_exchange: mean bytes that a rank sends per exchange.
        identical: True if the predictions are bit-identical to those of the plan's first point in this workload.
        stats: ``headway.stats(group)`` by rank; empty for other systems.
    """

    workload: int
    point: Point
    num_samples: int
    latency: Estimate
    latency_quantiles: tuple[float, float, float]
    throughput: Estimate
    run_rates: tuple[float, ...]
    speedup: Estimate | None
    request_latency: Estimate
    request_latency_p99: float
    waiting: Estimate
    posting: Estimate
    replay_ratio: Estimate
    held_bytes: int
    library_bytes: int | None
    bytes_per_exchange: float
    identical: bool
    stats: dict[int, dict[str, Any]]


def make_rows(plan: Plan, measurements: Sequence[Measurement], stats: Sequence[GroupStats]) -> list[ResultRow]:
    """Creates the rows of all completely measured workloads, in the order of the plan's workloads and points."""
    by_point: dict[tuple[int, Point], list[Measurement]] = defaultdict(list)
    for entry in sorted(measurements, key=lambda measurement: (measurement.run, measurement.rank)):
        by_point[entry.workload, entry.point].append(entry)
    rows = []
    runs_per_workload = len(plan.points) * plan.num_runs * plan.num_ranks
    num_measured = Counter(entry.workload for entry in measurements)
    for workload in range(len(plan.workloads)):
        if num_measured[workload] < runs_per_workload:
            continue
        expected = [entry.predictions_digest for entry in by_point[workload, plan.points[0]]]
        reference = by_point.get((workload, Point(REFERENCE_SYSTEM, 0)))
        for point in plan.points:
            entries = by_point[workload, point]
            identical = [entry.predictions_digest for entry in entries] == expected
            of_point = [entry for entry in stats if (entry.workload, entry.point) == (workload, point)]
            of_ranks = {entry.rank: entry.stats for entry in sorted(of_point, key=lambda entry: entry.rank)}
            rows.append(_make_row(plan, workload, point, entries, reference, identical, of_ranks))
    return rows


def _make_row(
    plan: Plan,
    workload: int,
    point: Point,
    entries: list[Measurement],
    reference: list[Measurement] | None,
    identical: bool,
    stats: dict[int, dict[str, Any]],
) -> ResultRow:
    steps = plan.num_steps
    elapsed_s = _elapsed(plan, entries)
    requests = np.concatenate([entry.request_latency_s for entry in entries])
    low, median, high = np.quantile(elapsed_s / steps, (0.05, 0.5, 0.95))
    return ResultRow(
        workload=workload,
        point=point,
        num_samples=elapsed_s.size,
        latency=batch_latency(elapsed_s, num_steps=steps),
        latency_quantiles=(float(low), float(median), float(high)),
        throughput=throughput(elapsed_s, num_steps=steps),
        run_rates=tuple((steps / elapsed_s).sum(axis=1).tolist()),
        speedup=None if reference is None else _speedup(elapsed_s, _elapsed(plan, reference)),
        request_latency=estimate([float(entry.request_latency_s.mean()) for entry in entries]),
        request_latency_p99=float(np.quantile(requests, 0.99)),
        waiting=estimate([entry.waiting_s / steps for entry in entries]),
        posting=estimate([entry.posting_s / steps for entry in entries]),
        replay_ratio=estimate(_replay_ratios(entries, point.max_lag, plan.num_ranks)),
        held_bytes=max(entry.held_bytes for entry in entries),
        library_bytes=max((_receive_buffer_bytes(plan, of_rank) for of_rank in stats.values()), default=None),
        bytes_per_exchange=float(np.mean([entry.bytes_per_exchange for entry in entries])),
        identical=identical,
        stats=stats,
    )


def _receive_buffer_bytes(plan: Plan, stats: dict[str, Any]) -> int:
    return int((stats if plan.device == "cpu" else stats["cuda"])["receive_buffer_bytes"])


def _elapsed(plan: Plan, entries: list[Measurement]) -> np.ndarray:
    """(runs, ranks) durations; ``entries`` must be sorted by run and rank."""
    return np.array([entry.elapsed_s for entry in entries]).reshape(plan.num_runs, plan.num_ranks)


def _speedup(elapsed_s: np.ndarray, reference_s: np.ndarray) -> Estimate:
    """Ratio of throughputs, paired by run, because all systems have the same delays in a run."""
    return estimate((1 / elapsed_s).sum(axis=1) / (1 / reference_s).sum(axis=1))


def _replay_ratios(entries: list[Measurement], max_lag: int, num_ranks: int) -> list[float]:
    """Returns for each run the measured time divided by the least time, found by a replay of its work."""
    ratios = []
    for first in range(0, len(entries), num_ranks):
        run = entries[first : first + num_ranks]
        measured_s = max(entry.finished_s for entry in run) - min(entry.work.start_s for entry in run)
        ratios.append(measured_s / replay([entry.work for entry in run], max_lag=max_lag).elapsed_s)
    return ratios


def bytes_per_lag(rows: Sequence[ResultRow], of_row: Callable[[ResultRow], int | None]) -> dict[str, float]:
    """Slope of ``of_row`` in bytes per unit of ``max_lag`` (least squares), for systems with at least two bounds."""
    by_system: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        num_bytes = of_row(row)
        if num_bytes is not None:
            by_system[row.point.system].append((row.point.max_lag, num_bytes))
    slopes = {}
    for system, points in by_system.items():
        lags = [lag for lag, _ in points]
        if len(set(lags)) > 1:
            slopes[system] = float(np.polyfit(lags, [num_bytes for _, num_bytes in points], 1)[0])
    return slopes


def paper_bytes_per_lag(plan: Plan, workload: int) -> int:
    """The paper's estimate of the memory per unit of ``max_lag`` for this workload, in bytes."""
    of = plan.workloads[workload]
    config = DlrmConfig(table_rows=of.table_rows, num_dense=of.num_dense)
    return estimated_bytes_per_lag(row_bytes=config.row_bytes, mini_batch=plan.mini_batch, num_tables=config.num_tables)


def json_row(plan: Plan, row: ResultRow) -> dict[str, Any]:
    """The JSON object of a row in ``results.jsonl``."""
    workload = plan.workloads[row.workload]
    low, median, high = row.latency_quantiles
    return {
        "name": "dlrm",
        "params": {
            "setting": workload.setting,
            "dataset": workload.dataset,
            "lag": row.point.max_lag,
            "ranks": plan.num_ranks,
            "device": plan.device,
            "bytes_per_rank": round(row.bytes_per_exchange),
            "mini_batch": plan.mini_batch,
            "steps": plan.num_steps,
            "runs": plan.num_runs,
            "seed": plan.seed,
            **({"foreign_load": plan.foreign_load} if plan.foreign_load else {}),
        },
        "system": row.point.system,
        "median_s": median,
        "p5_s": low,
        "p95_s": high,
        "samples": row.num_samples,
        "rate": row.throughput.mean,
        "unit": "batches/s",
        "ratio": None if row.speedup is None else row.speedup.mean,
        "ratio_ci95": None if row.speedup is None else row.speedup.half_width,
        "latency_s": row.latency.mean,
        "latency_ci95_s": row.latency.half_width,
        "rate_ci95": row.throughput.half_width,
        "request_latency_s": row.request_latency.mean,
        "request_latency_ci95_s": row.request_latency.half_width,
        "request_latency_p99_s": row.request_latency_p99,
        "waiting_s": row.waiting.mean,
        "posting_s": row.posting.mean,
        "replay_ratio": row.replay_ratio.mean,
        "replay_ratio_ci95": row.replay_ratio.half_width,
        "held_bytes": row.held_bytes,
        "library_bytes": row.library_bytes,
        "paper_bytes_per_lag": paper_bytes_per_lag(plan, row.workload),
        "predictions_identical": row.identical,
        "stats": row.stats,
    }
