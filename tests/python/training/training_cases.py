# SPDX-License-Identifier: Apache-2.0
"""Models, data and runs for tests of the trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headway.comm.rank_processes import run_ranks
from headway.data import SampleBatch
from headway.embedding import Constant, FeatureConfig, HashTableCollection, Sgd, TableConfig
from headway.training import Trainer, TrainingConfig
from parquet_samples import SCHEMA, make_rows, write_folder
from torch import Tensor, nn

SMALL = {"dim": 16, "num_heads": 2, "head_dim": 8, "embedding_dim": 4, "max_length": 16, "given": {"buy": "click"}}


def make_folder(folder: Path, num_rows: int = 64, *, targets: int | None = None) -> Path:
    """Writes samples into two files. With ``targets`` each has that many, at the time of its last event.

    Else a sample has 1 to 3 targets, the items to score.
    """
    rows = make_rows(num_rows)
    if targets is not None:
        draw = np.random.default_rng(5)
        for row in range(num_rows):
            last = max(rows["time"][row], default=0)
            for name in ("target_item", "target_shop"):
                rows[name][row] = draw.integers(0, 40, targets).tolist()
            rows["target_time"][row] = [last] * targets
            for name in SCHEMA.labels:
                rows[name][row] = draw.integers(0, 2, targets).tolist()
    return write_folder(folder, rows, files=2, row_group=8)


def make_config(folder: Path, **sections: dict[str, Any]) -> TrainingConfig:
    data = {
        "train": str(folder),
        "context": SCHEMA.context,
        "events": SCHEMA.events,
        "actions": SCHEMA.actions,
        "labels": SCHEMA.labels,
        "group": "user",
        "num_streams": 12,  # Ranks share these streams of samples; 1, 2, 3 and 4 ranks get equally many.
    }
    if "balance" not in sections.get("data", {}):
        data["global_batch"] = 16
    values = {"data": data | sections.pop("data", {}), "model": SMALL | sections.pop("model", {})}
    values["run"] = {"device": "cpu", "epochs": 2} | sections.pop("run", {})
    return TrainingConfig.of(values | sections)


class ExactModel(nn.Module):
    """A linear model whose sums are exact: its numbers are small multiples of powers of two.

    The loss of a target is +-(item @ weight), by its label. ``make_tables`` makes tables elsewhere.
    """

    def __init__(self, device: str = "cpu", make_tables: Callable[..., Any] | None = None) -> None:
        super().__init__()
        make = make_tables or partial(HashTableCollection, gradient_reduction="sum")
        self.tables = make(
            tables=[TableConfig("items", dim=4, optimizer=Sgd(lr=0.25), initializer=Constant(1.0))],
            features=[FeatureConfig("item", table="items", pooling=None)],
            device=device,
        )
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 4.0], device=device))

    def forward(self, batch: SampleBatch, *, seed: int, step: int) -> dict[str, Tensor]:
        items = self.rows_of(batch)
        ends = (batch.history_lengths + batch.target_lengths).cumsum(0)
        indices = [
            end - n + i for end, n in zip(ends.tolist(), batch.target_lengths.tolist(), strict=True) for i in range(n)
        ]
        of_targets = items[torch.tensor(indices, dtype=torch.int64, device=items.device)] @ self.weight
        return {name: (of_targets * (2 * batch.labels[name] - 1)).sum() for name in SCHEMA.labels}

    def rows_of(self, batch: SampleBatch) -> Tensor:
        """Looks up the embedding of each event."""
        return self.tables({"item": (batch.events["item"], batch.history_lengths + batch.target_lengths)})["item"]

    def count_terms(self, batch: SampleBatch) -> dict[str, int]:
        return dict.fromkeys(SCHEMA.labels, batch.num_targets)

    def predict(self, batch: SampleBatch) -> dict[str, Tensor]:
        raise NotImplementedError


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Returns all parameters, and the rows of all tables of this rank, by id."""
    # Arrays, since a queue would send tensors as files that their process must keep open.
    dense = {name: value.detach().cpu().numpy().copy() for name, value in trainer.model.named_parameters()}
    rows: dict[Any, list[float]] = {}
    for collection in trainer.tables:
        for merged in collection.merged_tables:
            for table in merged.tables:
                ids, embeddings = collection.rows(table.name)
                for key, values in zip(ids.tolist(), embeddings.tolist(), strict=True):
                    rows[table.name, key] = values
    return {"dense": dense, "rows": rows, "step": trainer.step}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the trainer.

    ``model`` makes the model; None: the one of ``config``. ``out`` is the folder of checkpoints and results.
    ``before`` gets the trainer right before it runs; ``resume`` continues from ``out``.
    """

    config: TrainingConfig
    out: Path | None = None
    model: Callable[[], nn.Module] | None = None
    resume: bool = False
    before: Callable[[Trainer], None] | None = None


def train_rank(rank: int, send: Callable[[Any], None], *, runs: Sequence[Run]) -> None:
    """Trains on one of several ranks, one run after the other, and sends the states."""
    if torch.cuda.is_available():
        os.environ["LOCAL_RANK"] = str(rank)
        torch.cuda.set_device(rank % torch.cuda.device_count())
    for number, run in enumerate(runs):
        model = None if run.model is None else run.model()
        trainer = Trainer(run.config, model=model, out=run.out, say=lambda line: None)
        if run.resume:
            assert trainer.resume()
        if run.before is not None:
            run.before(trainer)
        result = trainer.run()
        send((number, rank, state_of(trainer), result))


def train(num_ranks: int, *runs: Run) -> list[dict[str, Any]]:
    """Trains on ranks of this host; returns a state for each run.

    A state has the dense weights, the rows of all ranks by (table, id), the step, and the result of rank 0.
    """
    found: list[Any] = []
    if num_ranks == 1:  # In this process: it takes seconds to start another one.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            train_rank(0, found.append, runs=runs)
        finally:
            torch.set_num_threads(num_threads)
    else:
        function = partial(train_rank, runs=runs)
        run_ranks(function, num_ranks=num_ranks, timeout_s=200, backend="headway", on_message=found.append)
    return [_whole([each[1:] for each in found if each[0] == number]) for number in range(len(runs))]


def _whole(of_ranks: list[Any]) -> dict[str, Any]:
    states = [state for _, state, _ in sorted(of_ranks, key=lambda each: each[0])]
    for state in states[1:]:
        for name, value in states[0]["dense"].items():
            assert np.array_equal(state["dense"][name], value), "the dense part is the same on all ranks"
    rows = {key: values for state in states for key, values in state["rows"].items()}
    assert len(rows) == sum(len(state["rows"]) for state in states), "each row is on one rank"
    result = next(result for rank, _, result in of_ranks if rank == 0)
    return {"dense": states[0]["dense"], "rows": rows, "step": states[0]["step"], "result": result}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        one["rows"] == other["rows"]
        and one["step"] == other["step"]
        and all(np.array_equal(value, other["dense"][name]) for name, value in one["dense"].items())
    )


def most_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the largest absolute difference of a parameter or a row."""
    assert one["rows"].keys() == other["rows"].keys()
    dense = [float(np.abs(value - other["dense"][name]).max()) for name, value in one["dense"].items()]
    rows = [max(abs(a - b) for a, b in zip(one["rows"][key], other["rows"][key], strict=True)) for key in one["rows"]]
    return max(dense + rows)
