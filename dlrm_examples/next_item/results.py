"""Formats runs as JSON lines, in the format of the benchmark results, and as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrm_examples.bls_dlrm.results import current_commit, describe_machine
from dlrm_examples.bls_dlrm.text_table import format_table
from dlrm_examples.next_item.ranking import Quality
from dlrm_examples.next_item.trainer import TrainedRun

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


def write_json_lines(path: Path, params: dict[str, Any], runs: Sequence[Run]) -> None:
    """Writes one line per run to a new file; creates its directory.

    Raises:
        OSError: the file cannot be written.
    """
    origin = {"commit": current_commit(), "machine": describe_machine()}
    lines = [json.dumps(_json_row(params, run) | origin) for run in runs]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _json_row(params: dict[str, Any], run: Run) -> dict[str, Any]:
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
