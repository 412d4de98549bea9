# SPDX-License-Identifier: Apache-2.0
"""The measurement plan: workloads, points and sizes. Every rank gets the same plan.

A system is a way to run the model: synchronous, or with bounded lag over Gloo, NCCL or Headway. A bound is the largest
lag k: how many exchanges a rank may be ahead of the one whose result it uses. A point is a system with a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlrm_examples.dlrm_inference.devices import DeviceName
from dlrm_examples.dlrm_inference.settings import SETTINGS, Setting
from dlrm_examples.dlrm_inference.systems import SYSTEMS
from dlrm_examples.support.data.columnar_store import ColumnarLog

RANDOM_DATASET = "random"


@dataclass(frozen=True, order=True)
class Point:
    """One system with one bound; ``max_lag`` is 0 for the synchronous one."""

    system: str
    max_lag: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One setting on one dataset.

    Attributes:
        setting: name of the ``Setting``: delays of the ranks, and lookups per row.
        dataset: name of the log's format, or ``random``.
        log: the log of requests in columns (``columnar_store``); None: random requests.
        table_rows: rows of each embedding table.
        num_dense: inputs of the bottom MLP.
    """

    setting: str
    dataset: str
    log: ColumnarLog | None
    table_rows: tuple[int, ...]
    num_dense: int

    @property
    def conditions(self) -> Setting:
        """The ``Setting`` that ``setting`` names."""
        return SETTINGS[self.setting]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Input of every rank.

    Attributes:
        num_ranks: number of processes.
        workloads: workloads to run, one after the other.
        points: systems and bounds; each run measures all of them.
        num_runs: number of repetitions.
        num_steps: batches of a run.
        mini_batch: rows of a batch that each rank answers.
        seed: seed of weights, random requests and the delays of ranks.
        device: device of all ranks; on GPUs rank i uses GPU i.
        trace_path: file for traces of Headway's exchanges; setting, dataset and rank are inserted before the suffix.
        foreign_load: programs that run beside the measurement, as in "spin=2"; empty: none.
    """

    num_ranks: int
    workloads: tuple[Workload, ...]
    points: tuple[Point, ...]
    num_runs: int
    num_steps: int
    mini_batch: int
    seed: int
    device: DeviceName = "cpu"
    trace_path: Path | None = None
    foreign_load: str = ""

    @property
    def num_measurements(self) -> int:
        """Number of timed runs of the whole plan; all ranks take part in each."""
        return len(self.workloads) * len(self.points) * self.num_runs


def make_points(systems: list[str], max_lags: list[int]) -> tuple[Point, ...]:
    """All combinations of systems and bounds; the synchronous system has no bound and appears once, with 0."""
    points = []
    for name in systems:
        points += [Point(name, max_lag) for max_lag in (max_lags if SYSTEMS[name].bounded_lag else [0])]
    return tuple(points)
