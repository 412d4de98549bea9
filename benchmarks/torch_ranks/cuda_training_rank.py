# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark of training steps.

Started by ``benchmarks.cuda_training`` with the fields of ``TrainingSettings``.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist

from benchmarks.torch_ranks.cuda_ranks import connect, device_of
from benchmarks.torch_ranks.training_model import (
    Batch,
    Exchange,
    ModelSizes,
    Schedule,
    SlotExchange,
    Trainer,
    make_batch,
)

_NUM_BATCHES = 4
_WARM_UP_STEPS = 4
_TRACED_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of one rank; see the options of ``benchmarks.cuda_training``.

    Attributes:
        groups: 1: ids and rows use one process group; 2: ids have a group of their own.
        trace_dir: folder for profiler traces; None: no traces.
    """

    rank: int
    ranks: int
    systems: list[str]
    batch: int
    steps: int
    rounds: int
    groups: int
    timeout_s: int
    trace_dir: str | None


@dataclass
class Course:
    """One system and schedule: a trainer and its position among the batches."""

    trainer: Trainer
    schedule: Schedule
    batches: list[Batch]
    num_steps: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)

    def step(self) -> None:
        """Does the next step."""
        now, following = (self.batches[(self.num_steps + ahead) % len(self.batches)] for ahead in (0, 1))
        self.losses.append(self.trainer.step(now, following, self.schedule))
        self.num_steps += 1

    def measure(self, steps: int) -> tuple[list[float], float]:
        """Returns the seconds of each step, and the mean seconds per step for which the stream waited."""
        assert self.trainer.waits is not None, "only GPUs are measured"
        torch.cuda.synchronize()
        dist.barrier()
        self.trainer.waits.take_seconds()
        stamps = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        stamps[0].record()
        for stamp in stamps[1:]:
            self.step()
            stamp.record()
        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(stamps)]
        return times, self.trainer.waits.take_seconds() / steps


def report(settings: TrainingSettings, system: str, course: Course, number: int) -> None:
    """Measures a round. Rank 0 prints one point for each rank."""
    times, exposed_s = course.measure(settings.steps)
    point = {
        "name": "cuda_training",
        "params": {
            "ranks": settings.ranks,
            "groups": settings.groups,
            "schedule": course.schedule,
            "batch": settings.batch,
        },
        "system": system,
        "median_s": statistics.median(times),
        "samples": len(times),
        "unit": "s",
        # A rank's point is a round of its own, so that ratios compare times of one rank.
        "round": number * settings.ranks + settings.rank,
        "exposed_s": exposed_s,
        "loss": float(torch.stack(course.losses[-settings.steps :]).mean()),
    }
    gathered: list[Any] = [None] * settings.ranks
    dist.all_gather_object(gathered, point)
    if settings.rank == 0:
        for each in gathered:
            print(json.dumps(each), flush=True)


def further_group(settings: TrainingSettings, system: str) -> dist.ProcessGroup:
    """Makes one more group with a system's backend."""
    backend = "nccl" if system == "nccl" else "headway"
    return dist.new_group(backend=backend, timeout=datetime.timedelta(seconds=settings.timeout_s))


def exchange_of(system: str) -> type[Exchange]:
    """Returns the class that exchanges a system's rows."""
    return SlotExchange if system == "headway_slots" else Exchange


def write_trace(path: Path, course: Course) -> None:
    """Writes a trace of a few steps on the device by torch's profiler, for ui.perfetto.dev."""
    # Host activities are off: recording them would slow the host down.
    activities = [torch.profiler.ProfilerActivity.CUDA]
    dist.barrier()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(_TRACED_STEPS):
            course.step()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))


def main(fields: Mapping[str, Any]) -> None:
    """Measures everything."""
    settings = TrainingSettings(**fields)
    groups = connect(settings)
    device = device_of(settings.rank)
    sizes = ModelSizes(batch=settings.batch)
    batches = [make_batch(sizes, settings.rank, number, device) for number in range(_NUM_BATCHES)]
    schedules: tuple[Schedule, ...] = get_args(Schedule)
    of_ids = {
        system: Exchange(groups[system] if settings.groups == 1 else further_group(settings, system))
        for system in settings.systems
    }
    courses = {
        (system, schedule): Course(
            Trainer(sizes, exchange_of(system)(groups[system]), of_ids[system], device), schedule, batches
        )
        for schedule in schedules
        for system in settings.systems
    }
    for course in courses.values():
        for _ in range(_WARM_UP_STEPS):
            course.step()
    for number in range(settings.rounds):
        for key in list(courses) if number % 2 == 0 else list(reversed(courses)):
            report(settings, key[0], courses[key], number)
    for (system, schedule), course in courses.items():
        if settings.trace_dir is not None:
            name = f"training.{settings.groups}_groups.{system}.{schedule}.rank{settings.rank}.json"
            write_trace(Path(settings.trace_dir) / name, course)
    courses.clear()
    of_ids.clear()
    dist.barrier()  # Leave together.
