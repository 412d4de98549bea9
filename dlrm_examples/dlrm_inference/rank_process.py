# SPDX-License-Identifier: Apache-2.0
"""The work of one rank: builds its part of the model, measures every point, reports to the launcher.

A point is a system with a bound (plan.py); a workload is a delay setting with a dataset.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import headway
import numpy as np
import torch.distributed as dist

from dlrm_examples.dlrm_inference.devices import Host, open_device
from dlrm_examples.dlrm_inference.loop import InferenceRank, LoopResult
from dlrm_examples.dlrm_inference.measurement import GroupStats, Measurement, Message
from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.placement import place_tables
from dlrm_examples.dlrm_inference.plan import Plan, Point, Workload
from dlrm_examples.dlrm_inference.request_source import LogRequests, RandomRequests, RequestSource
from dlrm_examples.dlrm_inference.settings import draw_delays
from dlrm_examples.dlrm_inference.step_inputs import StepInputs, make_step_inputs
from dlrm_examples.dlrm_inference.systems import SYSTEMS, make_group

WARM_UP_STEPS = 5


def measure_plan(rank: int, report: Callable[[Message], None], *, plan: Plan) -> None:
    """Measures all workloads of the plan on one rank."""
    device = open_device(plan.device, rank)
    for index in range(len(plan.workloads)):
        measure_workload(plan, index, rank, device, report)


def measure_workload(plan: Plan, index: int, rank: int, device: Host, report: Callable[[Message], None]) -> None:
    """Measures all points of one workload and reports each run. Each run has its own random order of the points."""
    workload = plan.workloads[index]
    config = DlrmConfig(table_rows=workload.table_rows, num_dense=workload.num_dense, seed=plan.seed)
    inputs, inference = _prepare(plan, workload, config, rank, device)
    groups = _make_groups(plan, inputs, row_bytes=config.row_bytes)
    for point in plan.points:
        _run_point(inference, groups[point], point, np.zeros(min(WARM_UP_STEPS, plan.num_steps)))
        _reset_stats(groups[point])
    with _traced(plan, workload):
        _measure_runs(plan, index, rank, inference, groups, report)
    for point in plan.points:
        _report_stats(groups[point], rank, index, point, report)
    for group in dict.fromkeys(groups.values()):
        dist.destroy_process_group(group)


def _measure_runs(
    plan: Plan,
    index: int,
    rank: int,
    inference: InferenceRank,
    groups: dict[Point, dist.ProcessGroup],
    report: Callable[[Message], None],
) -> None:
    for run in range(plan.num_runs):
        delays_s = draw_delays(
            plan.workloads[index].conditions,
            rank=rank,
            num_ranks=plan.num_ranks,
            run=run,
            num_steps=plan.num_steps,
            seed=plan.seed,
        )
        for point in random.Random(f"{plan.seed} {run}").sample(plan.points, len(plan.points)):
            dist.barrier()  # on the default (Gloo) group, before the clock starts
            result = _run_point(inference, groups[point], point, delays_s)
            report(_measurement(result, rank, index, point, run))
    dist.barrier()


def _prepare(
    plan: Plan, workload: Workload, config: DlrmConfig, rank: int, device: Host
) -> tuple[list[StepInputs], InferenceRank]:
    placement = place_tables(
        config.table_rows, num_ranks=plan.num_ranks, lookups_per_row=workload.conditions.lookups_per_row
    )
    tables = placement.tables_of_rank[rank]
    shard = EmbeddingShard(config, tables)
    source = make_source(plan, workload, config, tables)
    inputs = [
        make_step_inputs(
            source,
            shard,
            step,
            rank=rank,
            placement=placement,
            pool_at_receiver=workload.conditions.pool_at_receiver,
        )
        for step in range(plan.num_steps)
    ]
    return inputs, InferenceRank(Dlrm(config), shard, placement, inputs, device)


def make_source(plan: Plan, workload: Workload, config: DlrmConfig, tables: Sequence[int]) -> RequestSource:
    """Creates the requests of a workload; ``tables`` are the tables whose ids it loads."""
    num_rows = plan.num_ranks * plan.mini_batch
    if workload.log is None:
        max_lookups = workload.conditions.max_lookups
        return RandomRequests(config, num_rows=num_rows, max_lookups=max_lookups, seed=plan.seed)
    return LogRequests(workload.log, config, tables=tables, num_rows=num_rows, num_steps=plan.num_steps)


def _make_groups(plan: Plan, inputs: list[StepInputs], *, row_bytes: int) -> dict[Point, dist.ProcessGroup]:
    """Creates one Headway group per bound, and one group for all points over Gloo or NCCL."""
    # A block (rows from one rank to another) larger than a slot, its receive buffer, would make its exchange wait for
    # the receiver, so that it could not lag.
    slot_bytes = max(row_bytes * max(step.receive_rows) for step in inputs)
    groups: dict[Point, dist.ProcessGroup] = {}
    shared: dict[str, dist.ProcessGroup] = {}
    for point in plan.points:
        backend = SYSTEMS[point.system].backends[plan.device]
        if backend == "headway":
            groups[point] = make_group(backend, max_lag=point.max_lag, slot_bytes=slot_bytes)
            continue
        if backend not in shared:
            shared[backend] = make_group(backend, max_lag=0, slot_bytes=0)  # Not used: these backends have no slots.
        groups[point] = shared[backend]
    return groups


def _run_point(inference: InferenceRank, group: dist.ProcessGroup, point: Point, delays_s: np.ndarray) -> LoopResult:
    if SYSTEMS[point.system].bounded_lag:
        return inference.run_bounded_lag(group, delays_s, max_lag=point.max_lag)
    return inference.run_synchronous(group, delays_s)


def _measurement(result: LoopResult, rank: int, workload: int, point: Point, run: int) -> Measurement:
    times = result.times
    digest = hashlib.sha256()
    for prediction in result.predictions:
        digest.update(prediction.cpu().numpy().tobytes())
    return Measurement(
        rank=rank,
        workload=workload,
        point=point,
        run=run,
        elapsed_s=times.elapsed_s,
        finished_s=times.finished,
        request_latency_s=times.request_latency_s,
        work=times.work(max_lag=point.max_lag),
        posting_s=float((times.post_ended - times.post_began).sum()),
        waiting_s=float((times.wait_ended - times.wait_began).sum()),
        held_bytes=result.held_bytes,
        bytes_per_exchange=result.sent_bytes / len(result.predictions),
        predictions_digest=digest.hexdigest(),
    )


def _reset_stats(group: dist.ProcessGroup) -> None:
    if _is_of_headway(group):
        headway.reset_stats(group)


def _report_stats(
    group: dist.ProcessGroup, rank: int, workload: int, point: Point, report: Callable[[Message], None]
) -> None:
    if _is_of_headway(group):
        report(GroupStats(rank=rank, workload=workload, point=point, stats=dict(headway.stats(group))))


def _is_of_headway(group: dist.ProcessGroup) -> bool:
    return str(dist.get_backend(group)) == "headway"


def _traced(plan: Plan, workload: Workload) -> AbstractContextManager[None]:
    """Context that traces exchanges over Headway if the plan asks for it; one file per workload and rank."""
    if plan.trace_path is None:
        return nullcontext()
    # headway.trace() replaces {rank} in the name.
    name = f"{plan.trace_path.stem}.{workload.setting}.{workload.dataset}.rank{{rank}}{plan.trace_path.suffix}"
    return headway.trace(plan.trace_path.with_name(name))
