# SPDX-License-Identifier: Apache-2.0
"""The pipeline prepares later steps at the right time, and changes no result.

Preparing a step means to read its batches, to add up its loss terms over ranks, and to begin its lookups. ``depth`` is
the number of prepared steps beside the one that computes. ``advance()`` prepares steps up to it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.data.reader import Position, StepBatch
from headway.data.sample_batch import SampleBatch, collate
from headway.training import Pipeline
from parquet_samples import SCHEMA
from training_cases import ExactModel, Run, make_config, make_folder, same_bits, train

CPU = torch.device("cpu")


class Steps:
    """Empty steps, with a log of the stages. ``fails_at`` raises instead of that step."""

    def __init__(self, num_steps: int, fails_at: int = -1) -> None:
        self.num_steps, self.fails_at, self.log = num_steps, fails_at, list[str]()

    def __iter__(self) -> Iterator[StepBatch]:
        for step in range(self.num_steps):
            if step == self.fails_at:
                raise OSError(f"cannot read step {step}")
            self.log.append(f"read {step}")
            yield StepBatch(Position(0, step), Position(0, step + 1), [collate([], SCHEMA)])

    def pipeline(self, depth: int) -> Pipeline:
        return Pipeline(iter(self), device=CPU, count=self._count, start_lookups=self._start, depth=depth)

    # Loss terms of a step. The pipeline adds them up over ranks, here only one: ``totals``.
    def _count(self, step: StepBatch) -> list[int]:
        self.step = step.position.step
        return [self.step, 7]

    def _start(self, batch: SampleBatch) -> str:
        self.log.append(f"start {self.step}")
        return f"lookups of {self.step}"


def test_later_steps_are_prepared_when_the_caller_says_so() -> None:
    steps = Steps(4)
    pipeline = steps.pipeline(depth=1)
    first = pipeline.next()
    assert first is not None and list(first.totals) == [0, 7] and list(first.lookups) == ["lookups of 0"]
    assert steps.log == ["read 0", "start 0"]
    pipeline.advance()
    pipeline.advance()  # One step is in flight: nothing more is prepared.
    assert steps.log[2:] == ["read 1", "start 1"]
    second = pipeline.next()
    assert second is not None and second.host.position.step == 1 and len(steps.log) == 4


@pytest.mark.parametrize(("depth", "prepared"), [(0, 0), (1, 1), (3, 3), (9, 5)])
def test_as_many_steps_as_the_depth_are_in_flight(depth: int, prepared: int) -> None:
    steps = Steps(6)
    pipeline = steps.pipeline(depth)
    pipeline.next()
    pipeline.advance()
    assert len(steps.log) == 2 * (1 + prepared)
    rest = []
    while (step := pipeline.next()) is not None:
        rest.append(step.host.position.step)
    assert rest == [1, 2, 3, 4, 5] and pipeline.next() is None


def test_lookups_of_parameter_servers_begin_within_the_staleness_and_before_a_checkpoint() -> None:
    steps, numbers = Steps(9), itertools.count()

    def start(batch: SampleBatch) -> str:
        steps.log.append("start")
        return f"lookups {next(numbers)}"

    pipeline = Pipeline(
        iter(steps), device=CPU, count=lambda step: [], start_lookups=start, depth=3, most_lookups_ahead=2
    )
    seen = []
    for steps_to_save in (None, 1, 0, 3, None):
        step = pipeline.next()
        assert step is not None
        pipeline.advance(steps_to_save=steps_to_save)
        seen.append((list(step.lookups), steps.log))
        steps.log = []
    # The first step, and that after the checkpoint, are looked up by the caller.
    assert [lookups for lookups, _ in seen] == [[None], ["lookups 0"], ["lookups 1"], [None], ["lookups 2"]]
    reads = ["read 0", "read 1", "start", "read 2", "start", "read 3"]
    assert seen[0][1] == reads and seen[1][1] == ["read 4"] and seen[2][1] == ["read 5"]
    assert seen[3][1] == ["start", "start", "read 6"] and seen[4][1] == ["start", "read 7"]


def test_an_error_of_the_reader_is_raised_when_its_step_is_due() -> None:
    pipeline = Steps(5, fails_at=2).pipeline(depth=3)
    pipeline.next()
    pipeline.advance()
    assert pipeline.next() is not None
    with pytest.raises(OSError, match="step 2"):
        pipeline.next()
    assert pipeline.next() is None


def test_a_closed_pipeline_has_no_more_steps() -> None:
    pipeline = Steps(5).pipeline(depth=2)
    pipeline.next()
    pipeline.advance()
    pipeline.close()
    assert pipeline.next() is None


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="depth is -1"):
        Steps(1).pipeline(depth=-1)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_results_do_not_depend_on_the_steps_in_flight(tmp_path: Path, num_ranks: int) -> None:
    folder = make_folder(tmp_path / "log")
    runs = [
        Run(config=make_config(folder, data={"micro_batches": 2}, run={"steps_ahead": depth}, model={"dropout": 0.2}))
        for depth in (0, 1, 3)
    ]
    alone, *others = train(num_ranks, *runs)
    assert alone["step"] == 8 and all(same_bits(other, alone) for other in others)


def test_a_model_without_start_lookups_is_trained_too(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    runs = [Run(config=make_config(folder, run={"steps_ahead": depth}), model=ExactModel) for depth in (0, 2)]
    alone, other = train(2, *runs)
    assert same_bits(other, alone)


def collision_share(out: Path) -> Any:
    """Returns that of the last line of a training."""
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return next(row["collision_share"] for row in reversed(rows) if row["kind"] == "progress")


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_prioritized_updates_change_no_bit(tmp_path: Path, num_ranks: int) -> None:
    """Also with checkpoints on the way, which must not have rows of a step that has not begun."""
    folder = make_folder(tmp_path / "log")
    ahead = {"prioritized_updates": True}
    sections: dict[str, Any] = {"data": {"micro_batches": 2}, "model": {"dropout": 0.2}}
    plain, prioritized, saved, first = train(
        num_ranks,
        Run(config=make_config(folder, **sections)),
        Run(config=make_config(folder, **sections, run=ahead)),
        Run(config=make_config(folder, **sections, run=ahead, checkpoint={"every": 3}), out=tmp_path / "saved"),
        Run(config=make_config(folder, **sections, run=ahead | {"max_steps": 5}), out=tmp_path / "first"),
    )
    assert same_bits(prioritized, plain) and same_bits(saved, plain)
    assert 0 < collision_share(tmp_path / "saved") < 1
    (resumed,) = train(
        num_ranks, Run(config=make_config(folder, **sections, run=ahead), out=tmp_path / "first", resume=True)
    )
    assert first["step"] == 5 and same_bits(resumed, plain)


class ReadsAhead(ExactModel):
    """A model that reads ahead, but begins no lookups before."""

    def read_ahead(self, lookups: Any) -> None:
        """Nothing has begun."""


def test_prioritized_updates_that_cannot_be_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, run={"prioritized_updates": True}, optimizer={"clip_norm": 1.0})
    train(2, Run(config=config, out=tmp_path))
    assert collision_share(tmp_path) is None, "clipping needs all gradients before an update"
    with pytest.raises(RuntimeError, match="needs a model with read_ahead"):
        train(2, Run(config=make_config(folder, run={"prioritized_updates": True}), model=ExactModel))
    with pytest.raises(RuntimeError, match="needs a model with start_lookups"):
        train(2, Run(config=make_config(folder, run={"prioritized_updates": True}), model=ReadsAhead))
