# SPDX-License-Identifier: Apache-2.0
"""One trained and evaluated run, and its JSON object in the format of the benchmark results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dlrm_examples.streaming_ctr.evaluation import Quality
from dlrm_examples.streaming_ctr.experiment import Experiment, System
from dlrm_examples.streaming_ctr.tables import TableUse

SMOOTHED_RATES = "smoothed rates"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one predictor.

    Attributes:
        system: the trained system; None: smoothed rates, which have no tables and no seed.
        seed: seed of initial embeddings and MLP.
        quality: quality by label, on the examples after the training.
        train_s: duration of the training in seconds.
        rows: rows of all tables after each tenth of the training.
        use: contents of the tables at the end of the training.
    """

    system: System | None
    seed: int | None
    quality: dict[str, Quality]
    train_s: float
    rows: tuple[int, ...] = ()
    use: TableUse | None = None

    @property
    def name(self) -> str:
        """Name of the system, or "smoothed rates"."""
        return SMOOTHED_RATES if self.system is None else self.system.name


def json_row(experiment: Experiment, run: Run, num_test: int) -> dict[str, Any]:
    """The JSON object of a run."""
    settings = experiment.settings
    params = {
        "history": experiment.history,
        "train_examples": experiment.num_train,
        "test_examples": num_test,
        "epochs": experiment.epochs,
        "dim": settings.tables.dim,
        "batch_size": settings.batch_size,
        "table_lr": settings.tables.lr,
        "dense_lr": settings.dense_lr,
        "seed": run.seed,
    }
    return {
        "name": "dynamic_ctr",  # The example's former name, as in older files of results.
        "params": params | ({} if run.system is None else _system_params(run.system)),
        "system": run.name,
        "quality": {label: quality._asdict() for label, quality in run.quality.items()},
        "train_s": run.train_s,
        "rows_by_tenth": run.rows,
        "tables": None if run.use is None else asdict(run.use),
    }


def _system_params(system: System) -> dict[str, Any]:
    return {
        "tables": system.kind,
        "ranks": system.num_ranks,
        "restart_at": None if system.restart is None else system.restart.at,
        "restart_ranks": None if system.restart is None else system.restart.num_ranks,
        "servers": None if system.servers is None else asdict(system.servers),
        **asdict(system.limits),
    }
