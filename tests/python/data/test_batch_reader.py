# SPDX-License-Identifier: Apache-2.0
"""Batches of a Parquet folder: each row once per epoch, in an order that depends on seed, epoch and step alone.

With the order ``shuffled`` the rows of an epoch are dealt to ``num_streams`` virtual streams, which take turns. Each
rank reads some of them. ``time`` is the order of the files.
"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from headway.data import BatchReader, DataError, ParquetFolder, Position, SampleBatch, SampleSchema
from headway.data.order import Turns
from parquet_samples import SCHEMA, make_rows, write_folder

NUM_ROWS = 137


@pytest.fixture
def folder(tmp_path: Path) -> ParquetFolder:
    return ParquetFolder(write_folder(tmp_path / "log", make_rows(NUM_ROWS), files=3), SCHEMA)


def ids_of_steps(folder: ParquetFolder, **options: Any) -> list[tuple[Position, list[list[int]]]]:
    """Returns the samples of each micro-batch of each step."""
    reader = BatchReader(folder, **({"global_batch": 16} | options))
    return [(step.position, [batch.sample_ids.tolist() for batch in step.batches]) for step in reader]


def global_steps(folder: ParquetFolder, num_ranks: int, **options: Any) -> list[tuple[Position, set[int]]]:
    """Returns the samples of all ranks in each step. No two ranks may have the same one."""
    by_rank = [ids_of_steps(folder, rank=rank, num_ranks=num_ranks, **options) for rank in range(num_ranks)]
    result = []
    for of_ranks in zip(*by_rank, strict=True):
        ids = [each for _, batches in of_ranks for batch in batches for each in batch]
        assert len(ids) == len(set(ids)) and len({position for position, _ in of_ranks}) == 1
        result.append((of_ranks[0][0], set(ids)))
    return result


@pytest.mark.parametrize("order", ["shuffled", "time"])
def test_an_epoch_has_each_sample_once_for_any_number_of_ranks(folder: ParquetFolder, order: str) -> None:
    alone = global_steps(folder, 1, order=order, epochs=2, num_streams=8)
    assert [len(ids) for _, ids in alone] == ([16] * 8 + [NUM_ROWS - 128]) * 2
    for epoch in (0, 1):
        ids = [each for position, step in alone if position.epoch == epoch for each in step]
        assert sorted(ids) == list(range(NUM_ROWS))
    for num_ranks in (2, 3, 5, 8):
        assert global_steps(folder, num_ranks, order=order, epochs=2, num_streams=8) == alone


def test_the_order_depends_on_seed_and_epoch(folder: ParquetFolder) -> None:
    first = global_steps(folder, 1, epochs=2)
    assert first == global_steps(folder, 1, epochs=2)
    assert first != global_steps(folder, 1, epochs=2, seed=1)
    assert [ids for _, ids in first[:9]] != [ids for _, ids in first[9:]]
    in_order = [sorted(ids) for _, ids in global_steps(folder, 1, order="time")]
    assert in_order == [list(range(16 * i, min(16 * i + 16, NUM_ROWS))) for i in range(9)]


@pytest.mark.parametrize("order", ["shuffled", "time"])
def test_a_reader_may_start_at_any_step(folder: ParquetFolder, order: str) -> None:
    whole = global_steps(folder, 2, order=order, epochs=2)
    for epoch, step in ((0, 0), (0, 5), (0, 8), (1, 0), (1, 8)):
        later = global_steps(folder, 3, order=order, epochs=2, start=Position(epoch, step))  # An epoch has 9 steps.
        assert later == whole[9 * epoch + step :]
    assert global_steps(folder, 1, order=order, epochs=2, start=Position(2, 0)) == []


def test_micro_batches_divide_the_samples_of_a_rank(folder: ParquetFolder) -> None:
    for (_, (whole,)), (_, parts) in zip(ids_of_steps(folder), ids_of_steps(folder, micro_batches=3), strict=True):
        assert [each for part in parts for each in part] == whole
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_batches_have_the_values_of_their_rows(folder: ParquetFolder) -> None:
    rows = make_rows(NUM_ROWS)
    for step in BatchReader(folder, global_batch=16, num_streams=4):
        (batch,) = step.batches
        expect_rows(batch, rows)


def expect_rows(batch: SampleBatch, rows: dict[str, list[Any]]) -> None:
    ids = batch.sample_ids.tolist()
    assert batch.context["user"].tolist() == [rows["user"][each] for each in ids]
    assert batch.actions["action"].tolist() == [value for each in ids for value in rows["action"][each]]
    assert batch.times is not None
    for name, found in (*batch.events.items(), ("time", batch.times)):
        expected = [value for each in ids for value in (*rows[name][each], *rows[f"target_{name}"][each])]
        assert found.tolist() == expected
    for name in SCHEMA.labels:
        assert batch.labels[name].tolist() == [value for each in ids for value in rows[name][each]]
    lengths = [(len(rows["item"][each]), len(rows["target_item"][each])) for each in ids]
    assert list(zip(batch.history_lengths.tolist(), batch.target_lengths.tolist(), strict=True)) == lengths
    assert batch.max_tokens == max(map(sum, lengths))


def test_ranks_without_samples_get_empty_batches(tmp_path: Path) -> None:
    folder = ParquetFolder(write_folder(tmp_path, make_rows(5)), SCHEMA)
    for rank in range(4):
        for step in BatchReader(folder, global_batch=2, rank=rank, num_ranks=4, num_streams=4, micro_batches=2):
            for batch in step.batches:
                assert batch.num_samples <= 1 and len(batch.events["item"]) == batch.num_events


def test_turns_are_those_of_a_plain_loop() -> None:
    """Turns says how many rows of each stream come before a position: the streams of an epoch take turns."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        lengths = torch.randint(0, 6, (5,), generator=generator).tolist()
        turns, taken = Turns(lengths), [0] * 5
        position = 0
        while True:
            assert turns.taken(position).tolist() == taken, (lengths, position)
            left = [i for i in range(5) if taken[i] < lengths[i]]
            if not left:
                break
            taken[min(left, key=lambda i: (taken[i], i))] += 1
            position += 1


@pytest.mark.parametrize("order", ["shuffled", "time"])
def test_any_number_of_threads_decodes_the_same_steps(folder: ParquetFolder, order: str) -> None:
    alone = ids_of_steps(folder, order=order, num_threads=1, epochs=2)
    assert ids_of_steps(folder, order=order, num_threads=7, epochs=2) == alone


def test_threads_end_with_their_iterator(folder: ParquetFolder) -> None:
    before = threading.active_count()
    steps = iter(BatchReader(folder, global_batch=4))
    next(steps)
    assert threading.active_count() > before, "one thread reads, others decode"
    del steps
    gc.collect()
    assert threading.active_count() == before


def change(rows: dict[str, list[Any]], name: str, row: int, value: Any) -> dict[str, list[Any]]:
    return rows | {name: [value if i == row else each for i, each in enumerate(rows[name])]}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("user", None, "column user is null"),
        ("item", None, "column item is null"),
        ("click", [2], "label click is 2, not 0 or 1"),
        ("time", [5, 3], "the times in time are not ascending"),
        ("time", [1, 999], "a target is earlier than the last event of the history"),
        ("shop", [1], "item has 2 values and shop 1"),
        ("action", [1, None], "a value of column action is null"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, name: str, value: Any, message: str) -> None:
    rows = make_rows(25)  # Row groups of 10 rows: row 17 is row 7 of row group 1.
    rows = {
        **rows,
        **{each: change(rows, each, 17, [1, 2])[each] for each in SCHEMA.history_columns},
        **{each: change(rows, each, 17, [1])[each] for each in (*SCHEMA.target_columns, *SCHEMA.labels)},
    }
    rows = change(rows, "target_time", 17, [9])
    path = write_folder(tmp_path / "log", change(rows, name, 17, value))
    with pytest.raises(DataError, match=rf"part-0.parquet, row group 1, row 7: .*{message}"):
        list(BatchReader(ParquetFolder(path, SCHEMA), global_batch=4))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        ParquetFolder(tmp_path / "none", SCHEMA)
    with pytest.raises(DataError, match=r"has no \.parquet files"):
        ParquetFolder(tmp_path, SCHEMA)
    rows = make_rows(4)
    lacking = {name: column for name, column in rows.items() if name != "shop"}
    with pytest.raises(DataError, match=r"part-0.parquet has no column shop; it has user, item"):
        ParquetFolder(write_folder(tmp_path / "a", lacking), SCHEMA)
    with pytest.raises(DataError, match="column user has type string, not integers"):
        ParquetFolder(write_folder(tmp_path / "b", rows | {"user": ["x"] * 4}), SCHEMA)
    whole = write_folder(tmp_path / "c", rows) / "part-0.parquet"
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part-0\.parquet cannot be read"):
        ParquetFolder(tmp_path / "c", SCHEMA)
    empty = {name: column[:0] for name, column in rows.items()}
    with pytest.raises(DataError, match=r"column user has type null|have no rows"):
        ParquetFolder(write_folder(tmp_path / "d", empty), SCHEMA)


@pytest.mark.parametrize("order", ["shuffled", "time"])
def test_long_samples_lose_their_oldest_events(tmp_path: Path, order: Any) -> None:
    rows, most = make_rows(NUM_ROWS), 5
    path = write_folder(tmp_path, rows, files=3)
    dropped = [max(len(old) + len(new) - most, 0) for old, new in zip(rows["item"], rows["click"], strict=True)]
    expected = {
        name: [each[count:] for each, count in zip(column, dropped, strict=True)]
        if name in SCHEMA.history_columns
        else column
        for name, column in rows.items()
    }
    folder = ParquetFolder(path, SCHEMA, max_events=most, too_long="truncate_oldest")
    batches = [batch for step in BatchReader(folder, global_batch=16, order=order) for batch in step.batches]
    for batch in batches:
        expect_rows(batch, expected)
        assert batch.max_tokens <= most
    assert sum(batch.num_truncated for batch in batches) == sum(count > 0 for count in dropped) > 0


def test_a_long_sample_is_named(tmp_path: Path) -> None:
    rows = make_rows(20)
    lengths = [len(old) + len(new) for old, new in zip(rows["item"], rows["click"], strict=True)]
    path = write_folder(tmp_path, rows)
    row = next(row for row in range(20) if lengths[row] > 6)
    folder = ParquetFolder(path, SCHEMA, max_events=6)
    place = rf"row group {row // 10}, row {row % 10}"
    with pytest.raises(DataError, match=rf"{place}: a sample has {lengths[row]} events, and 6 are allowed; too_long"):
        list(BatchReader(folder, global_batch=20, num_streams=1, num_threads=1, order="time"))
    folder = ParquetFolder(path, SCHEMA, max_events=2, too_long="truncate_oldest")
    with pytest.raises(DataError, match="a sample has 3 events, and 2 are allowed, all of them targets"):
        list(BatchReader(folder, global_batch=20, order="time"))


def test_bad_files_may_be_left_out(tmp_path: Path) -> None:
    rows = make_rows(30)
    path = write_folder(tmp_path, rows, files=3)
    broken = path / "part-1.parquet"
    broken.write_bytes(broken.read_bytes()[:-20])
    folder = ParquetFolder(path, SCHEMA, on_bad_file="skip")
    assert folder.num_rows == 20
    assert len(folder.bad_files) == 1 and "part-1.parquet cannot be read" in folder.bad_files[0]
    found = [each for _, batches in ids_of_steps(folder) for batch in batches for each in batch]
    assert sorted(found) == list(range(20))
    for name in ("part-0.parquet", "part-2.parquet"):
        (path / name).write_bytes(b"no")
    with pytest.raises(DataError, match=r"have no rows; .*part-0.parquet cannot be read"):
        ParquetFolder(path, SCHEMA, on_bad_file="skip")


def test_unfinished_writes_are_left_out(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "_run/log", make_rows(10))
    write_folder(path / "day=1", make_rows(5))
    for hidden in ("_temporary/0", ".staging", "day=1/_temporary"):
        write_folder(path / hidden, make_rows(7))
    for name in ("_part.parquet", ".part.parquet"):
        (path / name).write_bytes(b"no")
    assert ParquetFolder(path, SCHEMA).num_rows == 15
    for part in (path / "part-0.parquet", path / "day=1/part-0.parquet"):
        part.unlink()
    with pytest.raises(DataError, match=r"has no \.parquet files but 5 below names that begin with _ or \."):
        ParquetFolder(path, SCHEMA)


def test_lists_of_a_fixed_size_are_lists(tmp_path: Path) -> None:
    rows = make_rows(12)
    for name in (*SCHEMA.target_columns, *SCHEMA.labels):
        rows[name] = [[1000, 1001] if name == "target_time" else [row % 2, 1] for row in range(12)]
    fixed = {name: pa.array(rows[name], pa.list_(pa.int64(), 2)) for name in ("target_item", "target_time", "click")}
    path = write_folder(tmp_path, rows | fixed)
    assert "fixed_size_list" in str(pq.read_schema(path / "part-0.parquet").field("click").type)
    for order in ("shuffled", "time"):
        for step in BatchReader(ParquetFolder(path, SCHEMA), global_batch=5, order=order):
            expect_rows(step.batches[0], rows)
    bad = fixed | {"click": pa.array([[0, 1]] * 11 + [[0, None]], pa.list_(pa.int64(), 2))}
    path = write_folder(tmp_path / "bad", rows | bad)
    with pytest.raises(DataError, match="row group 1, row 1: a value of column click is null"):
        list(BatchReader(ParquetFolder(path, SCHEMA), global_batch=12))


def test_wrong_arguments_are_refused(folder: ParquetFolder) -> None:
    with pytest.raises(ValueError, match="9 ranks need as many streams"):
        BatchReader(folder, global_batch=4, num_ranks=9, num_streams=8)
    with pytest.raises(ValueError, match="at least 1"):
        BatchReader(folder, global_batch=0)
    with pytest.raises(ValueError, match=r"200 ranks share 137 samples of .*: use fewer ranks"):
        BatchReader(folder, global_batch=4, num_ranks=200)
    with pytest.raises(ValueError, match="column item is used twice"):
        SampleSchema(events=("item", "item"), labels=("click",))
    with pytest.raises(ValueError, match="group user is none of the context features"):
        SampleSchema(events=("item",), labels=("click",), group="user")


def test_a_bad_row_is_told_although_earlier_steps_are_still_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = make_rows(40)
    rows["click"][39] = [7] * len(rows["click"][39])
    folder = ParquetFolder(write_folder(tmp_path, rows, row_group=10), SCHEMA)
    join = BatchReader._join

    def join_slowly(reader: BatchReader, of_step: Any) -> Any:
        time.sleep(0.05)
        return join(reader, of_step)

    monkeypatch.setattr(BatchReader, "_join", join_slowly)
    steps = iter(BatchReader(folder, global_batch=4, num_streams=1, num_threads=1, read_ahead=8, order="time"))
    numbers = []
    with pytest.raises(DataError, match="label click is 7, not 0 or 1"):
        for step in steps:
            numbers.append(step.position.step)
    assert numbers == list(range(len(numbers))) and len(numbers) >= 5, "steps before the error are complete"
