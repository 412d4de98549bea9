# SPDX-License-Identifier: Apache-2.0
"""Formats runs as JSON objects, in the format of the benchmark results, and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headway.evaluation.full_ranking import Quality

from dlrm_examples.next_item.trainer import TrainedRun
from dlrm_examples.support.text_table import format_table

POPULARITY = "popularity"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One evaluated run.

    Attributes:
        system: name of the model, or "popularity".
        seed: seed of the run; None for popularity.
        validation, test: quality on each part.
        trained: result of the training; None for popularity.
    """

    system: str
    seed: int | None
    validation: Quality
    test: Quality
    trained: TrainedRun | None = None


def json_row(params: dict[str, Any], run: Run) -> dict[str, Any]:
    """The JSON object of a run."""
    trained = run.trained
    return {
        "name": "next_item",
        "params": params | {"seed": run.seed},
        "system": run.system,
        "quality": {"validation": run.validation._asdict(), "test": run.test._asdict()},
        "train_s": None if trained is None else trained.train_s,
        "epoch_losses": None if trained is None else trained.epoch_losses,
        "encoder_parameters": None if trained is None else trained.num_parameters,
    }


def report(runs: Sequence[Run]) -> str:
    """Formats one line per system: means and standard deviations over its seeds."""
    by_system = {
        name: [run for run in runs if run.system == name] for name in dict.fromkeys(run.system for run in runs)
    }
    headings = ("system", "runs", "HR@10", "NDCG@10", "validation HR@10", "NDCG@10", "train s")
    return format_table(headings, [_line(name, of_system) for name, of_system in by_system.items()])


def _line(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    seconds = [run.trained.train_s for run in runs if run.trained is not None]
    return (
        name,
        str(len(runs)),
        _spread([run.test.hit_rate for run in runs]),
        _spread([run.test.ndcg for run in runs]),
        _spread([run.validation.hit_rate for run in runs]),
        _spread([run.validation.ndcg for run in runs]),
        f"{statistics.mean(seconds):.0f}" if seconds else "",
    )


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{deviation}"


def params_of(*settings: Any, **others: Any) -> dict[str, Any]:
    """Parameters of a JSON line: the fields of all settings objects, merged with ``others``."""
    return {name: value for each in settings for name, value in asdict(each).items()} | others
