# SPDX-License-Identifier: Apache-2.0
"""Batches up to a budget of tokens: each sample once per epoch, for any number of ranks, from any step on.

The rows of an epoch are dealt to ``num_streams`` virtual streams. A position has the rows taken from each of them. A
rank knows those of its own streams and has 0 for the others, so the sum over ranks is the position of all.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from headway.data import Budget, BudgetReader, ParquetFolder, Position
from headway.data.reader import StepBatch
from headway.data.sample_batch import SampleBatch
from parquet_samples import SCHEMA, make_rows, write_folder

NUM_ROWS = 140


@pytest.fixture
def folder(tmp_path: Path) -> ParquetFolder:
    return ParquetFolder(write_folder(tmp_path, make_rows(NUM_ROWS), files=3, row_group=16), SCHEMA)


def read_epochs(folder: ParquetFolder, num_ranks: int, tokens: float, **options: Any) -> list[list[list[StepBatch]]]:
    """Returns the steps of each epoch and rank, as a trainer sees them: all ranks end an epoch together."""
    readers = [
        BudgetReader(folder, budget=Budget(tokens), rank=rank, num_ranks=num_ranks, num_streams=12, **options)
        for rank in range(num_ranks)
    ]
    sources = [iter(reader) for reader in readers]
    epochs: list[list[list[StepBatch]]] = []
    number = -1
    while (steps := [next(source, None) for source in sources])[0] is not None:
        assert all(step is not None for step in steps)
        of_ranks = [step for step in steps if step is not None]
        epoch = of_ranks[0].position.epoch
        assert all(step.position.epoch == epoch for step in of_ranks)
        if sum(batch.num_samples for step in of_ranks for batch in step.batches) == 0:
            for reader in readers:
                reader.end_epoch(epoch)
            continue
        if epoch != number:
            epochs.append([[] for _ in range(num_ranks)])
            number = epoch
        for rank, step in enumerate(of_ranks):
            epochs[-1][rank].append(step)
    return epochs


def ids_of(steps: list[list[StepBatch]]) -> list[int]:
    return [
        each for of_rank in steps for step in of_rank for batch in step.batches for each in batch.sample_ids.tolist()
    ]


def tokens_of(batch: SampleBatch) -> list[int]:
    return (batch.event_lengths + len(SCHEMA.context)).tolist()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [1, 20, 100_000])
def test_each_epoch_has_each_sample_once(folder: ParquetFolder, num_ranks: int, tokens: int) -> None:
    for steps in read_epochs(folder, num_ranks, tokens, epochs=2, micro_batches=2):
        assert sorted(ids_of(steps)) == list(range(NUM_ROWS))
        assert len({len(of_rank) for of_rank in steps}) == 1, "all ranks take the same steps"


def test_batches_are_as_full_as_the_budget_allows(folder: ParquetFolder) -> None:
    (steps,) = read_epochs(folder, 1, 20)
    batches = [tokens_of(step.batches[0]) for step in steps[0]]
    assert all(sum(batch) <= 20 or len(batch) == 1 for batch in batches)
    for batch, following in pairwise(batches):
        assert sum(batch) + following[0] > 20, "the next sample did not fit"


def test_a_sample_above_the_budget_is_a_batch_alone(folder: ParquetFolder) -> None:
    (steps,) = read_epochs(folder, 1, 1)
    assert all(batch.num_samples == 1 for step in steps[0] for batch in step.batches) and len(steps[0]) == NUM_ROWS


def test_long_samples_cost_more_by_weight(folder: ParquetFolder) -> None:
    budget = Budget(60, square_weight=0.5)
    assert budget.cost(4) == 4 + 0.5 * 16
    for step in BudgetReader(folder, budget=budget, num_streams=12):
        lengths = tokens_of(step.batches[0])
        if not lengths:  # All samples are read. Steps without samples follow until end_epoch().
            break
        assert sum(map(budget.cost, lengths)) <= 60 or len(lengths) == 1


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (2, 3), (4, 1), (1, 4)])
def test_a_reader_goes_on_from_any_step_with_other_ranks(folder: ParquetFolder, before: int, after: int) -> None:
    whole = read_epochs(folder, before, 30)[0]
    for step in (0, len(whole[0]) // 2, len(whole[0]) - 1):
        seen = ids_of([of_rank[: step + 1] for of_rank in whole])
        positions = [of_rank[step].next for of_rank in whole]
        taken = tuple(map(sum, zip(*(each.taken for each in positions), strict=True)))
        start = Position(0, step + 1, taken)
        rest = read_epochs(folder, after, 30, start=start, epochs=2)
        left = rest[0] if len(rest) > 1 else []  # Nothing is left of the first epoch after its last step.
        assert sorted(seen + ids_of(left)) == list(range(NUM_ROWS))
        assert sorted(ids_of(rest[-1])) == list(range(NUM_ROWS))
        if before == after:
            expected = ids_of([of_rank[step + 1 :] for of_rank in whole])
            assert ids_of(left) == expected, "the same batches as without a stop"


def test_wrong_arguments_are_refused(folder: ParquetFolder) -> None:
    with pytest.raises(ValueError, match="budget"):
        BudgetReader(folder, budget=Budget(0))
    with pytest.raises(ValueError, match="13 ranks need as many streams"):
        BudgetReader(folder, budget=Budget(1), num_ranks=13, num_streams=12)
    with pytest.raises(ValueError, match="a position of 3 streams, and num_streams is 12"):
        BudgetReader(folder, budget=Budget(1), start=Position(0, 1, (1, 2, 3)), num_streams=12)
