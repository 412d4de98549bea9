"""What to run: the workloads, the points of each, and the sizes; handed to every rank as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlrm_examples.bls_dlrm.columnar_store import ColumnarLog
from dlrm_examples.bls_dlrm.devices import DeviceName
from dlrm_examples.bls_dlrm.settings import SETTINGS, Setting
from dlrm_examples.bls_dlrm.systems import SYSTEMS

RANDOM_DATASET = "random"


@dataclass(frozen=True, order=True)
class Point:
    """One system at one bound."""

    system: str
    max_lag: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One setting on one dataset.

    Attributes:
        setting: its name.
        dataset: name of the log's format, or ``random``.
        log: the converted log, None for random requests.
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
        """The setting itself."""
        return SETTINGS[self.setting]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the ranks need to know.

    Attributes:
        num_ranks: processes.
        workloads: what to run, one after the other.
        points: systems and bounds, all measured in each of the runs.
        num_runs: repetitions.
        num_steps: batches of a run.
        mini_batch: rows of a batch that each rank answers.
        seed: of weights, random requests and delays.
        device: where all ranks compute; on GPUs rank i takes GPU i.
        trace_path: where to write traces of Headway's exchanges; setting, dataset and rank go before the suffix.
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

    @property
    def num_measurements(self) -> int:
        """Timed runs of the whole plan, each by all ranks at once."""
        return len(self.workloads) * len(self.points) * self.num_runs


def make_points(systems: list[str], lags: list[int]) -> tuple[Point, ...]:
    """Every system at every bound; the synchronous one has no bound and counts once, at 0."""
    points = []
    for name in systems:
        points += [Point(name, lag) for lag in (lags if SYSTEMS[name].bounded_lag else [0])]
    return tuple(points)
