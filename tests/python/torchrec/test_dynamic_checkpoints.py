# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with dynamic tables: N ranks save and M ranks load.

A record is a row as checkpoints hold it: id, lookup count, step, embedding and optimizer state. The hash of a key gives
its bucket; each rank owns a range of buckets. An id is pending, without a row, until it has ``min_count`` lookups.
"""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dynamic_models import (
    CPU,
    POOLED,
    SEQUENCE,
    Kind,
    batches,
    device_of,
    make_batch,
    shard_model,
    sharded_collection,
    train_in_loop,
)
from headway._embedding import Keys, Table, route
from headway.embedding import Adagrad, Adam, Optimizer
from headway.embedding.merging import table_id_of
from headway.embedding.table_state import TableRecords
from rank_processes import BACKENDS, run_ranks

#: (table, id) -> count, step, embedding, optimizer state.
Rows = dict[tuple[str, int], tuple[int, int, list[float], list[float]]]


def rows_of(parallel: Any) -> tuple[Rows, dict[tuple[str, int], int]]:
    """Returns all rows of this rank, and the lookup counts of its pending ids, which have no row yet."""
    rows: Rows = {}
    pending: dict[tuple[str, int], int] = {}
    for name, records in parallel.state_dict().items():
        if not name.endswith(".records"):
            continue
        read = records.read()
        table = name.split(".")[2]
        columns = (read.counts_K, read.steps_K, read.embeddings_KD, read.states_KS)
        for id, *values in zip(read.ids_K.tolist(), *(column.tolist() for column in columns), strict=True):
            assert (table, id) not in rows, "a row is saved once"
            rows[table, id] = tuple(values)
        for id, count in zip(read.pending_P.tolist(), read.pending_counts_P.tolist(), strict=True):
            pending[table, id] = count
    sizes = [kernel.table.size() for kernel in sharded_collection(parallel).kernels()]
    assert len(rows) == sum(size["rows"] for size in sizes), "there are no rows of other ranks"
    assert len(pending) == sum(size["pending"] for size in sizes)
    return rows, pending


def updates_of(parallel: Any) -> list[int]:
    """Returns the number of updates (steps with gradients) of each merged table."""
    return [kernel.updates for kernel in sharded_collection(parallel).kernels()]


def train(parallel: Any, rank: int, *, first: int, end: int) -> list[float]:
    return train_in_loop(parallel, islice(batches(rank, device=device_of(parallel)), first, end))


def state_of(parallel: Any) -> dict[str, Any]:
    return {"model": parallel.state_dict(), "optimizer": parallel.fused_optimizer.state_dict()}


def fill(parallel: Any) -> None:
    """Inserts so many rows that each chunk of a saved table has some, including chunks that three ranks cut in two.

    A chunk is the range of buckets that one rank saves.
    """
    ids = torch.arange(3000)
    for kernel in sharded_collection(parallel).kernels():
        for table in kernel.merged.tables:
            # order: indices of ids by owner rank; counts_R: ids of each owner.
            order, counts_R = route(Keys(ids, table=table_id_of(table.name)), dist.get_world_size())
            counts = counts_R.tolist()
            own = ids[order.split(counts)[dist.get_rank()]].to(device_of(parallel))
            embeddings = torch.rand(len(own), table.dim).to(own.device)
            kernel.table.insert_or_assign(Keys(own, table=table_id_of(table.name)), embeddings)


# Both return rows, pending ids and updates of the checkpoint, and the losses of two steps after it.
def save(rank: int, kind: Kind, folder: str, min_count: int, device: torch.device = CPU) -> Any:
    parallel = shard_model(kind, Adam(lr=0.1), device=device, min_count=min_count)
    train(parallel, rank, first=0, end=3)
    fill(parallel)
    dcp.save(state_of(parallel), checkpoint_id=folder)
    saved = rows_of(parallel)
    return *saved, updates_of(parallel), train(parallel, rank, first=3, end=5)


def load(rank: int, kind: Kind, folder: str, min_count: int, device: torch.device = CPU) -> Any:
    parallel = shard_model(kind, Adam(lr=0.1), device=device, min_count=min_count)
    train(parallel, rank, first=5, end=6)  # Loading must replace these rows.
    state = state_of(parallel)
    dcp.load(state, checkpoint_id=folder)
    parallel.load_state_dict(state["model"])
    parallel.fused_optimizer.load_state_dict(state["optimizer"])
    loaded = rows_of(parallel)
    return *loaded, updates_of(parallel), train(parallel, rank, first=3, end=5)


def merged(parts: list[dict[Any, Any]]) -> dict[Any, Any]:
    whole = {key: value for part in parts for key, value in part.items()}
    assert len(whole) == sum(map(len, parts)), "each key has one owner"
    return whole


@pytest.mark.parametrize(("saving", "loading"), [(1, 3), (3, 2), (2, 1), (2, 3)])
def test_any_number_of_ranks_loads_what_another_saved(saving: int, loading: int, tmp_path: Path) -> None:
    kind, min_count = (SEQUENCE, 1) if saving != 3 else (POOLED, 9)
    saved = run_ranks(save, saving, kind, str(tmp_path), min_count)
    loaded = run_ranks(load, loading, kind, str(tmp_path), min_count)
    for column in (0, 1):  # Rows, then pending ids. With min_count 1 no id is pending.
        whole = merged([result[column] for result in saved])
        assert merged([result[column] for result in loaded]) == whole
        assert whole or (column == 1 and min_count == 1)
    assert saved[0][2] == loaded[0][2] == [3] * len(saved[0][2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_goes_on_where_it_was(backend: str, tmp_path: Path) -> None:
    saved = run_ranks(save, 2, POOLED, str(tmp_path), 2, backend=backend)
    loaded = run_ranks(load, 2, POOLED, str(tmp_path), 2, backend=backend)
    assert [result[3] for result in loaded] == [result[3] for result in saved]


def pass_state_on(rank: int) -> None:
    """Loads a state without checkpoint files: as it is, as a deep copy, and through torch.save()."""
    parallel = shard_model(SEQUENCE, Adam(lr=0.1))
    train(parallel, rank, first=0, end=2)
    file = io.BytesIO()
    torch.save(parallel.state_dict(), file)
    file.seek(0)
    expected = rows_of(parallel)
    for state in (parallel.state_dict(), copy.deepcopy(parallel.state_dict()), torch.load(file)):
        other = shard_model(SEQUENCE, Adam(lr=0.1))
        assert rows_of(other) == ({}, {})
        other.load_state_dict(state)
        assert rows_of(other) == expected
        assert updates_of(other) == [2]


def load_between_passes(rank: int) -> None:
    """Loads a collection's state between a forward and its backward pass, which must update the loaded tables."""
    parallel = shard_model(SEQUENCE, Adam(lr=0.1))
    train(parallel, rank, first=0, end=2)
    collection = sharded_collection(parallel)
    state = copy.deepcopy(collection.state_dict())
    loss, _ = parallel(make_batch(rank, 0))
    loss.backward()
    learned, _ = rows_of(parallel)
    collection.load_state_dict(state)
    loss, _ = parallel(make_batch(rank, 0))
    collection.load_state_dict(state)
    loss.backward()
    rows, _ = rows_of(parallel)
    # Counts and steps differ: the batch was counted in the replaced tables.
    assert {key: row[2:] for key, row in rows.items()} == {key: row[2:] for key, row in learned.items()}
    assert updates_of(parallel) == [3]


def test_gradients_go_to_the_tables_of_a_state_that_was_loaded_meanwhile() -> None:
    run_ranks(load_between_passes, 2)


def load_one_table(rank: int) -> None:
    """Loads a state that lacks one of two merged tables. That table must keep its rows."""
    parallel, other = (shard_model(SEQUENCE, Adam(lr=0.1)) for _ in range(2))
    train(parallel, rank, first=0, end=2)
    train(other, rank, first=2, end=3)
    (theirs, _), (before, _) = rows_of(parallel), rows_of(other)
    state = {name: value for name, value in parallel.state_dict().items() if not name.endswith(".user.records")}
    missing = other.load_state_dict(state, strict=False).missing_keys
    assert [name.split(".")[-2:] for name in missing] == [["user", "records"]]
    after, _ = rows_of(other)
    assert after == {key: row for rows, table in ((theirs, "item"), (before, "user"))
                     for key, row in rows.items() if key[0] == table}  # fmt: skip


def test_tables_may_be_new_to_a_checkpoint() -> None:
    run_ranks(load_one_table, 2)


def test_a_state_dict_is_good_by_itself() -> None:
    run_ranks(pass_state_on, 2)


def refuse(rank: int) -> None:
    def other(optimizer: Optimizer) -> Any:
        return shard_model(SEQUENCE, optimizer)

    parallel = other(Adam(lr=0.1))
    state = parallel.state_dict()
    # Optimizer state of DIM = 4 columns: two values each with Adam, one with Adagrad.
    with pytest.raises(RuntimeError, match=r"table item: its records have 4 columns and 8 values .* not 4 and 4"):
        other(Adagrad(lr=0.1)).load_state_dict(dict(state))
    name = next(name for name, records in state.items() if name.endswith(".item.records"))
    records = state[name].read()
    strange = dict(state) | {name: TableRecords.of(replace(records, routing_version=99))}
    with pytest.raises(RuntimeError, match="routing 99, not 1"):
        parallel.load_state_dict(dict(strange))
    begin, end = records.buckets
    strange[name] = TableRecords.of(records.read((begin, end - 1)))
    with pytest.raises(RuntimeError, match=f"table item: a part of its records is missing, from bucket {end - 1}"):
        parallel.load_state_dict(dict(strange))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        sharded_collection(parallel).load_state_dict({"embeddings.other.records": state[name]})
    none = {name: value for name, value in state.items() if not name.endswith(".records")}
    with pytest.raises(RuntimeError, match="Missing key"):
        sharded_collection(parallel).load_state_dict({})
    assert parallel.load_state_dict(none, strict=False).missing_keys
    dist.barrier()


def test_what_does_not_fit_is_told() -> None:
    run_ranks(refuse, 2)


def load_without_room(rank: int, dim: int) -> None:
    """Loads a state while tables of ``dim`` columns have no room. All tables must stay as they were."""
    parallel, other = (shard_model(POOLED, Adam(lr=0.1)) for _ in range(2))
    train(parallel, rank, first=0, end=2)
    train(other, rank, first=2, end=3)
    before = rows_of(other), updates_of(other)
    with_room = Table.import_records

    def import_records(table: Table, *arguments: Any, **options: Any) -> None:
        with_room(table, *arguments, **options)
        if table.dim == dim:
            raise MemoryError("there is no room for 1 of 2 records")

    with mock.patch.object(Table, "import_records", import_records), pytest.raises(MemoryError, match="no room"):
        other.load_state_dict(parallel.state_dict())
    assert (rows_of(other), updates_of(other)) == before
    other.load_state_dict(parallel.state_dict())
    assert rows_of(other) == rows_of(parallel)


@pytest.mark.parametrize("dim", POOLED.dims)
def test_a_table_without_room_leaves_all_as_they_were(dim: int) -> None:
    run_ranks(load_without_room, 1, dim)
