# SPDX-License-Identifier: Apache-2.0
"""Samples that move between ranks: none is lost or changed, ranks have even work, and errors reach all ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.comm.rank_processes import run_ranks
from headway.data import BatchReader, ParquetFolder, SampleBatch
from headway.data.reader import START, Position, StepBatch
from headway.data.sample_batch import collate
from headway.parallel.balance import BalancedSteps, BalanceError, BalancePlan, SampleWeight, StepBudget
from headway.parallel.balance.records import pack, unpack, words_of
from parquet_samples import SCHEMA, make_rows, write_folder

PLANS = [
    BalancePlan(),
    BalancePlan(planner="zigzag", micro_batches=3),
    BalancePlan(mode="variable", weight=SampleWeight(square=0.1), micro_batches=2, max_tokens=20),
    BalancePlan(mode="variable", planner="segments", weight=SampleWeight(exponent=1.3)),
]


@pytest.fixture
def folder(tmp_path: Path) -> ParquetFolder:
    return ParquetFolder(write_folder(tmp_path / "log", make_rows(70), files=3, row_group=16), SCHEMA)


def samples_of(batch: SampleBatch) -> dict[int, Any]:
    """Returns all columns of each sample, by its number."""
    events, targets = batch.event_lengths.tolist(), batch.target_lengths.tolist()
    histories = batch.history_lengths.tolist()
    parts = {
        **{name: batch.events[name].split(events) for name in SCHEMA.events},
        **{name: batch.actions[name].split(histories) for name in SCHEMA.actions},
        **{name: batch.labels[name].split(targets) for name in SCHEMA.labels},
        **({} if batch.times is None else {"time": batch.times.split(events)}),
    }
    return {
        sample: (
            {name: int(values[index]) for name, values in batch.context.items()},
            {name: of_name[index].tolist() for name, of_name in parts.items()},
        )
        for index, sample in enumerate(batch.sample_ids.tolist())
    }


def test_records_hold_all_bits_of_their_samples(folder: ParquetFolder) -> None:
    batch = next(iter(BatchReader(folder, global_batch=40, num_streams=12))).batches[0]
    batch.labels["click"][0] = float("nan")  # Any bits of a float travel.
    records = pack(batch, SCHEMA)
    assert len(records.words) == int(words_of(records.histories, records.targets, SCHEMA).sum())
    again = unpack(records, SCHEMA)
    assert str(samples_of(again)) == str(samples_of(batch)) and again.max_tokens == batch.max_tokens
    order = torch.randperm(40)[:25]
    some = unpack(records.select(order, SCHEMA), SCHEMA)
    assert some.sample_ids.tolist() == batch.sample_ids[order].tolist()
    assert all(str(samples_of(batch)[key]) == str(value) for key, value in samples_of(some).items())


def test_no_samples_have_records() -> None:
    empty = collate([], SCHEMA)
    again = unpack(pack(empty, SCHEMA), SCHEMA)
    assert again.num_samples == again.num_events == again.num_targets == again.max_tokens == 0


def read_with_plans(rank: int, send: Callable[[Any], None], *, path: Path, plans: Sequence[BalancePlan]) -> None:
    for number, plan in enumerate(plans):
        send((number, rank, *read_balanced(rank, path, plan)))


def read_balanced(rank: int, path: Path, plan: BalancePlan) -> tuple[list[Any], list[Any]]:
    folder = ParquetFolder(path, SCHEMA)
    reader = BatchReader(folder, global_batch=24, num_streams=12, epochs=2, rank=rank, num_ranks=dist.get_world_size())
    steps = BalancedSteps(iter(reader), plan=plan, schema=SCHEMA, group=dist.group.WORLD, busy_s=lambda: rank + 0.5)
    found = []
    for step in steps:
        assert len(step.batches) == plan.micro_batches
        assert steps.busy_s == [each + 0.5 for each in range(dist.get_world_size())]
        tokens = [int((batch.event_lengths + 1).sum()) for batch in step.batches]
        assert not plan.max_tokens or max(tokens) <= plan.max_tokens
        own = {key: value for batch in step.batches for key, value in samples_of(batch).items()}
        found.append((step.position, step.next, own, sum(tokens)))
    spreads = [spread._asdict() for spread in steps.take_spreads()]
    steps.close()
    return found, spreads


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_steps_have_the_samples_of_the_reader(folder: ParquetFolder, num_ranks: int) -> None:
    # A step of 24 samples has at most 240 tokens, in two micro-batches of each rank.
    plans = [replace(plan, max_tokens=120 // num_ranks + 12) if plan.max_tokens else plan for plan in PLANS]
    found: list[Any] = []
    work = partial(read_with_plans, path=folder.folder, plans=plans)
    run_ranks(work, num_ranks=num_ranks, timeout_s=60, backend="headway", on_message=found.append)
    for number, plan in enumerate(plans):
        of_plan = sorted((each[1:] for each in found if each[0] == number), key=lambda each: each[0])
        expect_the_samples_of_the_reader(folder, of_plan, plan)


def expect_the_samples_of_the_reader(folder: ParquetFolder, found: list[Any], plan: BalancePlan) -> None:
    expected = list(BatchReader(folder, global_batch=24, num_streams=12, epochs=2))
    assert all(len(steps) == len(expected) for _, steps, _ in found)
    for number, step in enumerate(expected):
        of_ranks = [steps[number] for _, steps, _ in found]
        joined: dict[int, Any] = {}
        for position, after, own, _ in of_ranks:
            assert (position, after) == (step.position, step.next)
            assert not joined.keys() & own.keys(), "each sample is on one rank"
            joined |= own
        assert joined == samples_of(step.batches[0])
        if plan.mode == "fixed":
            counts = [len(own) for _, _, own, _ in of_ranks]
            assert max(counts) - min(counts) <= plan.micro_batches
    assert all(spreads == found[0][2] for _, _, spreads in found), "all ranks find the same plans"
    for spread in found[0][2]:
        assert spread["weight"] > (0.65 if plan.planner == "segments" else 0.8)
        assert 0 < spread["unbalanced"] <= 1 and 0 <= spread["moved"] <= 1


def test_budgeted_steps_have_each_sample_once_and_resume_anywhere(folder: ParquetFolder) -> None:
    """70 samples in chunks of 16: the last chunk of each of two epochs has 6."""

    def read(start: Position = START, depth: int = 2) -> list[StepBatch]:
        reader = BatchReader(
            folder, global_batch=16, num_streams=12, epochs=2, start=Position(start.epoch, start.samples // 16)
        )
        budget = StepBudget(50, chunk_samples=16, start=start, seed=3)
        steps = BalancedSteps(
            iter(reader), plan=BalancePlan(mode="variable"), schema=SCHEMA, budget=budget, depth=depth
        )
        found = list(steps)
        steps.close()
        return found

    steps = read()
    for epoch in range(2):
        of_epoch = [step for step in steps if step.position.epoch == epoch]
        ids = [sample for step in of_epoch for sample in step.batches[0].sample_ids.tolist()]
        assert sorted(ids) == list(range(70)) and ids != sorted(ids)
        tokens = [int((step.batches[0].event_lengths + 1).sum()) for step in of_epoch]
        assert max(tokens) <= 50 and min(tokens[:-1]) > 40
        assert [step.position.step for step in of_epoch] == list(range(len(of_epoch)))
    assert [step.next for step in steps[:-1]] == [step.position for step in steps[1:]]
    assert steps[-1].next == Position(2)
    for number in range(0, len(steps), 3):
        later = read(steps[number].position, depth=1)
        assert [step.position for step in later] == [step.position for step in steps[number:]]
        for one, other in zip(later, steps[number:], strict=True):
            assert samples_of(one.batches[0]) == samples_of(other.batches[0])


def test_a_sample_above_the_budget_is_a_step_alone(folder: ParquetFolder) -> None:
    reader = BatchReader(folder, global_batch=16, num_streams=12)
    budget = StepBudget(3, chunk_samples=16)
    steps = list(BalancedSteps(iter(reader), plan=BalancePlan(mode="variable"), schema=SCHEMA, budget=budget))
    assert sum(step.batches[0].num_samples for step in steps) == 70
    assert all(
        step.batches[0].num_samples == 1 or int((step.batches[0].event_lengths + 1).sum()) <= 3 for step in steps
    )


def failing(rank: int, send: Callable[[Any], None], *, path: Path, how: str) -> None:
    def steps() -> Iterator[StepBatch]:
        reader = BatchReader(
            ParquetFolder(path, SCHEMA), global_batch=24, num_streams=12, rank=rank, num_ranks=dist.get_world_size()
        )
        for number, step in enumerate(reader):
            if rank == 1 and number == 1:
                if how == "raise":
                    raise OSError("part-1.parquet is gone")
                return
            yield step

    plan = BalancePlan(planner="zigzag" if how == "plan" and rank == 1 else "greedy")
    try:
        balanced = BalancedSteps(steps(), plan=plan, schema=SCHEMA, group=dist.group.WORLD)
        send((rank, [step.position.step for step in balanced], ""))
    except (BalanceError, OSError) as error:
        send((rank, [], f"{type(error).__name__}: {error}"))


@pytest.mark.parametrize(
    ("how", "own", "of_others"),
    [
        ("raise", "OSError: part-1.parquet is gone", "BalanceError: rank 1 cannot read its samples"),
        ("end", "BalanceError: rank 1 has no more steps", "BalanceError: rank 1 has no more steps"),
        ("plan", "planner='greedy'.* rank 1 has .*zigzag", "planner='greedy'.* rank 1 has .*zigzag"),
    ],
)
def test_an_error_of_one_rank_reaches_all(folder: ParquetFolder, how: str, own: str, of_others: str) -> None:
    found: list[Any] = []
    run_ranks(
        partial(failing, path=folder.folder, how=how),
        num_ranks=3,
        timeout_s=60,
        backend="headway",
        on_message=found.append,
    )
    for rank, _, error in found:
        assert re.search(own if rank == 1 else of_others, error), error
    assert len(found) == 3


def closing_early(rank: int, send: Callable[[Any], None], *, path: Path) -> None:
    reader = BatchReader(
        ParquetFolder(path, SCHEMA),
        global_batch=8,
        num_streams=12,
        epochs=50,
        rank=rank,
        num_ranks=dist.get_world_size(),
    )
    source = iter(reader)
    steps = BalancedSteps(source, plan=BalancePlan(), schema=SCHEMA, group=dist.group.WORLD, depth=3)
    for _ in range(5):
        next(steps)
    if rank == 0:
        time.sleep(0.3)  # Its thread must not leave the others in a step that it does not start.
    began = time.monotonic()
    steps.close()
    send((rank, time.monotonic() - began, steps._thread.is_alive(), next(steps, None)))


def test_ranks_close_together_in_the_middle(folder: ParquetFolder) -> None:
    found: list[Any] = []
    run_ranks(
        partial(closing_early, path=folder.folder),
        num_ranks=3,
        timeout_s=60,
        backend="headway",
        on_message=found.append,
    )
    assert len(found) == 3
    for _, seconds, is_alive, after in found:
        assert seconds < 5 and not is_alive and after is None


def test_micro_batches_of_all_ranks_are_planned_at_once() -> None:
    """By ranks first, 883 and 319 tokens, or others, would meet in a rank whose two micro-batches cannot hold them."""
    tokens = torch.tensor([319, 424, 221, 808, 150, 679, 883])
    for mode in ("fixed", "variable"):
        plan = BalancePlan(mode=mode, max_tokens=1000, micro_batches=2)  # type: ignore[arg-type]
        ranks, parts = plan.divide(SampleWeight().of(tokens), tokens, num_ranks=2, step=5)
        sums = torch.zeros(4, dtype=torch.int64).index_add_(0, 2 * ranks + parts, tokens)
        assert int(sums.max()) <= 1000 and int(sums.sum()) == int(tokens.sum())


def test_a_reader_with_micro_batches_is_refused(folder: ParquetFolder) -> None:
    reader = BatchReader(folder, global_batch=24, num_streams=12, micro_batches=2)
    steps = BalancedSteps(iter(reader), plan=BalancePlan(), schema=SCHEMA)
    with pytest.raises(ValueError, match="set micro_batches of the plan"):
        next(steps)
    steps.close()


def test_an_error_of_the_reader_comes_when_its_step_is_due() -> None:
    def steps() -> Iterator[StepBatch]:
        yield StepBatch(Position(0, 0), Position(0, 1), [collate([], SCHEMA)])
        raise OSError("gone")

    balanced = BalancedSteps(steps(), plan=BalancePlan(), schema=SCHEMA)
    assert next(balanced).position.step == 0
    with pytest.raises(OSError, match="gone"):
        next(balanced)
    assert next(balanced, None) is None
    balanced.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "fixed", "planner": "segments"}, "segments does not make batches of fixed size"),
        ({"mode": "variable", "planner": "zigzag"}, "zigzag does not make batches of variable size"),
        ({"micro_batches": 0}, "micro_batches is at least 1"),
        ({"max_tokens": -1}, "max_tokens at least 0"),
    ],
)
def test_wrong_plans_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BalancePlan(**arguments)


def test_weights_are_integers() -> None:
    tokens = torch.tensor([0, 1, 100, 21_000])
    assert SampleWeight().of(tokens).tolist() == [65_536 * each for each in tokens.tolist()]
    assert SampleWeight(square=0.01).of(tokens)[2] == 65_536 * 200
    assert SampleWeight(exponent=2).of(tokens)[3] == 65_536 * 21_000**2
    with pytest.raises(ValueError, match="numbers from 0"):
        SampleWeight(square=-1)


def test_weights_that_are_too_large_are_told() -> None:
    weights, tokens = torch.full((3,), 1 << 62), torch.full((3,), 5)
    with pytest.raises(BalanceError, match=r"3 samples cannot be divided: .* the sum of weight does not fit 63 bits"):
        BalancePlan().divide(weights, tokens, num_ranks=2, step=0)
