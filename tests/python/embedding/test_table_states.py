# SPDX-License-Identifier: Apache-2.0
"""Tables in the state_dict() of a model: N ranks save and M ranks load. An incomplete state is rejected.

The entry of a table is a TableRecords. Each record belongs to a virtual bucket of the ids' hash, and a checkpoint
holds the records in pieces: ranges of buckets.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from headway._embedding import NUM_VIRTUAL_BUCKETS, Table
from headway.embedding import Adam, FeatureConfig, HashTableCollection, RowWiseAdagrad, Sgd, TableConfig, table_state
from headway.embedding.merging import table_ids_of
from headway.embedding.state_records import add_records, take_records
from headway.embedding.table_records import Records
from headway.embedding.table_records import join_records as join_pieces
from headway.embedding.table_state import TableRecords
from rank_processes import run_ranks
from table_cases import (
    integer_loss,
    join_pending,
    join_records,
    make_batch,
    make_tables,
    pending_of,
    records_of,
    same,
    train,
)
from torch.distributed.checkpoint.api import CheckpointException


class Model(torch.nn.Module):
    def __init__(self, group: dist.ProcessGroup | None = None, **more: Any) -> None:
        super().__init__()
        self.tables = make_tables(Adam(lr=0.01), {"hot_count": 3, "min_count": 2, **more}, process_group=group)
        self.top = torch.nn.Linear(8, 1)


def train_on_many(tables: HashTableCollection, rank: int) -> None:
    """Trains on so many ids that each piece has some, including pieces that the new ranges of ranks cut in two."""
    for _ in range(2):
        batch = make_batch(rank, batch_size=800, num_ids=20_000)
        integer_loss(tables(batch), batch).backward()
        tables.optimizer.step()


def trained(steps: range = range(3), **more: Any) -> Model:
    model = Model(**more)
    train(model.tables, steps)
    return model


def save(rank: int, folder: str) -> Any:
    model = Model(dist.group.WORLD)
    train_on_many(model.tables, rank)
    train(model.tables, range(2), rank)
    dcp.save(model.state_dict(), checkpoint_id=folder)
    return records_of(model.tables), pending_of(model.tables)


def load(rank: int, folder: str) -> Any:
    model = Model(dist.group.WORLD)
    train(model.tables, range(5, 6), rank)  # Loading must replace these rows.
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state)
    found = records_of(model.tables), pending_of(model.tables), model.tables.step
    train(model.tables, range(3, 4), rank)
    return found


@pytest.mark.parametrize(("saving", "loading"), [(1, [3]), (3, [1, 2, 5])])
def test_any_number_of_ranks_loads_what_another_saved(saving: int, loading: list[int], tmp_path: Path) -> None:
    saved = run_ranks(save, saving, str(tmp_path), backend="gloo")
    expected = join_records([records for records, _ in saved])
    waiting = join_pending([pending for _, pending in saved])
    assert len(waiting) > 200 and all(len(records[0]) > 500 for records in expected)
    for num_ranks in loading:
        loaded = run_ranks(load, num_ranks, str(tmp_path), backend="gloo")
        assert same(join_records([records for records, _, _ in loaded]), expected), num_ranks
        assert join_pending([pending for _, pending, _ in loaded]) == waiting
        assert {step for _, _, step in loaded} == {4}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("passed_on", [dict, copy.deepcopy, through_a_file])
def test_what_goes_on_from_a_state_is_what_would_have_gone_on(passed_on: Callable[[Any], Any]) -> None:
    model, other = trained(), trained(range(5, 6))
    other.load_state_dict(passed_on(model.state_dict()))
    assert pending_of(other.tables) == pending_of(model.tables)
    for each in (model, other):
        train(each.tables, range(3, 6))
    assert same(records_of(other.tables), records_of(model.tables)) and other.tables.step == 6
    assert torch.equal(other.top.weight, model.top.weight)


@pytest.mark.parametrize(
    "passed_on",
    [
        lambda state: {name: value.clone() for name, value in state.items()},
        lambda state: {name: value.cpu() for name, value in state.items()},
        lambda state: {name: value.detach().to("cpu") for name, value in state.items()},
        lambda state: {name: torch.clone(value).contiguous() for name, value in state.items()},
    ],
)
def test_values_of_a_state_are_copied_as_tensors_are(passed_on: Callable[[Any], Any]) -> None:
    model, other = trained(), trained(range(5, 6))
    before, waiting = records_of(model.tables), pending_of(model.tables)
    state = passed_on(model.state_dict())
    train(model.tables, range(3, 5))
    other.load_state_dict(state)
    assert same(records_of(other.tables), before) and pending_of(other.tables) == waiting


def test_values_of_a_state_tell_their_size_and_what_they_are_not() -> None:
    model = trained()
    state = model.state_dict()
    assert sorted(name for name in state if name.startswith("tables.")) == [
        f"tables.{name}.records" for name in ("cities", "items", "users")
    ]
    rows = sum(len(records[0]) for records in records_of(model.tables)[:1])
    # A row has 8 elements and Adam's two moments of each.
    assert sum(state[f"tables.{name}.records"].numel() for name in ("items", "users")) == rows * (8 + 16)
    records = state["tables.items.records"]
    assert isinstance(records, torch.Tensor) and records.shape == records.size() == (NUM_VIRTUAL_BUCKETS,)
    assert records.device.type == "cpu" and "TableRecords" in repr(records)
    for wrong in (
        lambda: torch.add(records, 1),
        lambda: records.norm(),
        lambda: torch.stack([records]),
        records.tolist,
    ):
        with pytest.raises(TypeError, match=r"not for the records of a table.*read"):
            wrong()
    for cast in (records.half, lambda: records.to(torch.float16)):
        with pytest.raises(TypeError, match="records of a table"):
            cast()


def test_a_model_with_tables_cannot_be_pickled_but_its_state() -> None:
    with pytest.raises(TypeError, match=r"HashTableCollection cannot be pickled: pickle its state_dict\(\)"):
        pickle.dumps(trained())


def save_asynchronously(rank: int, folder: str) -> Any:
    """Trains on after ``async_save()`` has returned. The checkpoint must not contain these updates."""
    model = Model(dist.group.WORLD)
    train(model.tables, range(2), rank)
    future = dcp.async_save(model.state_dict(), checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))
    expected = records_of(model.tables)
    train(model.tables, range(2, 4), rank)
    future.result()
    other = Model(dist.group.WORLD)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    dcp.load(state, checkpoint_id=folder)  # Into the same state once more: nothing is there twice.
    other.load_state_dict(state)
    assert same(records_of(other.tables), expected)


def test_an_asynchronous_save_has_what_was_there_when_it_began(tmp_path: Path) -> None:
    run_ranks(save_asynchronously, 2, str(tmp_path), backend="gloo")


def test_a_large_table_is_saved_and_read_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table_state, "_FRAGMENT_BYTES", 1 << 10)
    model, other = trained(), trained(range(5, 6))
    state = model.state_dict()
    assert len(state["tables.items.records"].__create_write_items__("name", None)) > 4
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    loaded = other.state_dict()
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    dcp.save(loaded, checkpoint_id=tmp_path / "again", no_dist=True)  # Saves the loaded state, which is in no table.
    again = other.state_dict()
    dcp.load(again, checkpoint_id=tmp_path / "again", no_dist=True)
    for each in (loaded, again):
        other.load_state_dict(each)
        assert same(records_of(other.tables), records_of(model.tables))
        assert pending_of(other.tables) == pending_of(model.tables)


def test_many_small_tables_are_few_objects(tmp_path: Path) -> None:
    # Two merged tables: names of 6 letters have dim 8, those of 7 letters dim 9.
    names = [f"table{number}" for number in range(26)]
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=8 + len(name) % 2, optimizer=Sgd(lr=1)) for name in names],
        features=[FeatureConfig(name, table=name) for name in names],
    )
    state = tables.state_dict()
    assert len(state) == len(names)
    assert sum(len(each.__create_write_items__(name, each)) for name, each in state.items()) == len(names)


def test_the_records_of_a_table_may_become_those_of_another_one_if_all_are_there() -> None:
    model, other = trained(), trained(range(5, 6))
    users, cities = (model.state_dict()[f"tables.{name}.records"] for name in ("users", "cities"))
    state = model.state_dict() | {"tables.items.records": users}
    other.load_state_dict(state)
    assert sorted(of_table("items", records_of(other.tables)[0])[0]) == sorted(users.read().ids_K)
    part = TableRecords.of(replace(users.read(), buckets=(0, NUM_VIRTUAL_BUCKETS - 1)))
    expect_refusal(model, state | {"tables.items.records": part}, "a part of its records is missing, from bucket 16383")
    expect_refusal(model, state | {"tables.items.records": cities}, "table items: its records have 4 columns")


def expect_refusal(model: Model, state: dict[str, Any], message: str) -> None:
    before, waiting = records_of(model.tables), pending_of(model.tables)
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state)
    assert same(records_of(model.tables), before) and pending_of(model.tables) == waiting
    assert model.tables.step == 3


def in_pieces(*pieces: Records) -> TableRecords:
    """Makes the value that a load of a checkpoint with these pieces gives."""
    records = TableRecords.of(pieces[0])
    (chunk,) = records.__create_chunk_list__()
    assert chunk.offsets == torch.Size([pieces[0].buckets[0]])
    for piece in pieces:
        records.receive(piece.encode())
    return records


def test_a_state_that_lacks_records_is_refused_by_name() -> None:
    model, states = trained(), through_a_file(trained(range(4)).state_dict())
    name = "tables.items.records"
    whole: Records = states[name].read()
    first, second, third = (whole.read(each) for each in ((0, 5440), (5440, 9000), (9000, NUM_VIRTUAL_BUCKETS)))
    assert same([join_pieces([first, second, third], whole.buckets).rows], [whole.rows])
    missing = r"table items: a part of its records is missing, from bucket 5440 on"
    expect_refusal(model, states | {name: in_pieces(first, third)}, missing)
    expect_refusal(model, states | {name: TableRecords.of(first)}, missing)
    nothing = TableRecords.of(whole)
    nothing.__create_chunk_list__()
    expect_refusal(model, states | {name: nothing}, "a part of its records is missing, from bucket 0 on")
    shortened = TableRecords.of(replace(whole, steps_K=whole.steps_K[1:]))
    expect_refusal(model, states | {name: shortened}, "table items: a column of its records is truncated")
    earlier = trained(range(2)).state_dict()[name].read()
    mixed = in_pieces(first, earlier.read((5440, NUM_VIRTUAL_BUCKETS)))
    expect_refusal(model, states | {name: mixed}, r"table items: its records are of \[2, 4\] updates")
    no_records = r"table items: tables.items.records is a Tensor, and no records"
    expect_refusal(model, states | {name: torch.zeros(3)}, no_records)
    strange = TableRecords.of(replace(whole, routing_version=9))
    expect_refusal(model, states | {name: strange}, "table items: its records are of routing 9, not 1")
    # A state with the records of the second of two ranks only.
    of_a_rank = {each: value for each, value in states.items() if not each.endswith(".records")}
    add_records([replace(each, rank=1, num_ranks=2) for each in model.tables._shards()], of_a_rank, "tables.")
    expect_refusal(model, of_a_rank, "a part of its records is missing, from bucket 0 on")


def test_pieces_that_are_truncated_or_of_another_layout_are_refused() -> None:
    encoded = trained().state_dict()["tables.items.records"].read().encode()
    for cut in (encoded[:, :-1], encoded[:, :40]):
        with pytest.raises(ValueError, match="truncated"):
            Records.decode(cut.contiguous())
    altered = encoded.clone()
    altered[0, -1] ^= 1
    with pytest.raises(ValueError, match="altered"):
        Records.decode(altered)
    altered[0, 0] = 7
    with pytest.raises(ValueError, match="layout 7, not 2"):
        Records.decode(altered)


def test_pieces_of_the_first_layout_are_read() -> None:
    records = trained().state_dict()["tables.items.records"].read()
    encoded = records.encode()
    words = encoded[0, :88].view(torch.int64)
    words[0] = 1  # Layout 1 is layout 2 without the checksum, the last word of the header.
    first_layout = torch.cat([encoded[:, :80], encoded[:, 88:]], dim=1)
    assert same([Records.decode(first_layout).rows], [records.rows])


def test_states_of_other_tables_are_refused_by_name() -> None:
    state = trained().state_dict()
    for optimizer, has in ((Sgd(lr=1), 0), (RowWiseAdagrad(lr=1), 1)):
        with pytest.raises(RuntimeError, match=rf"table users: .* 8 columns and 16 values .*, not 8 and {has}"):
            make_tables(optimizer).load_state_dict(
                {name.removeprefix("tables."): each for name, each in state.items() if name.startswith("tables.")}
            )
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "tables.more.records"'):
        trained().load_state_dict(state | {"tables.more.records": state["tables.users.records"]})


# Earlier versions named entries by chunk and part, such as 085.0. None of such names is one of a state now.
@pytest.mark.parametrize("part", ["256.0", "085.2", "85.0", "other"])
def test_records_under_names_that_no_state_has_are_unexpected(part: str) -> None:
    model, other = trained(), trained(range(5, 6))
    strange = f"tables.items.records.{part}"
    state = model.state_dict() | {strange: model.state_dict()["tables.items.records"]}
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "{re.escape(strange)}"\.'):
        trained().load_state_dict(state)
    assert other.load_state_dict(state, strict=False).unexpected_keys == [strange]
    assert same(records_of(other.tables), records_of(model.tables))


def take(tables: HashTableCollection, state: dict[str, Any], prefix: str) -> tuple[list[Any], list[str], list[str]]:
    """Takes the records from a state. Returns those that were read, unexpected keys and errors."""
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    read = take_records(
        tables._shards(), state, prefix, missing_keys=missing, unexpected_keys=unexpected, error_msgs=errors
    )
    assert not missing
    return read, unexpected, errors


@pytest.mark.parametrize("prefix", ["", "tables.", "model.records.tables.", "model.records_of.tables."])
def test_entries_of_other_modules_stay_in_a_state_whatever_the_path_is(prefix: str) -> None:
    tables, weight = trained().tables, torch.zeros(3)
    records = {f"{prefix}{name}": each for name, each in tables.state_dict().items()}
    others = {f"{prefix}{name}.weight": weight for name in ("static", "static.records", "static.records_of_users")}
    state = records | others
    read, unexpected, errors = take(tables, state, prefix)
    assert all(read) and not unexpected and not errors
    assert list(state) == list(others)


def test_a_state_with_a_wrong_entry_loses_all_records_that_were_in_it() -> None:
    tables = trained().tables
    state: dict[str, Any] = {"items.records": torch.zeros(3)} | {
        name: each for name, each in tables.state_dict().items() if name != "items.records"
    }
    read, unexpected, errors = take(tables, state, "")
    assert not any(read) and not unexpected and not state
    assert errors == ["table items: items.records is a Tensor, and no records"]


def of_table(name: str, records: list[Any]) -> list[Any]:
    return [column[records[1] == table_ids_of([name]).item()] for column in records]


def test_a_table_that_is_new_to_a_state_is_missing_or_keeps_what_it_has() -> None:
    model, other = trained(), trained(range(5, 7))
    before, theirs = records_of(other.tables), records_of(model.tables)
    state = {
        name: each for name, each in model.state_dict().items() if ".cities." not in name and ".users." not in name
    }
    missing = ["tables.users.records", "tables.cities.records"]
    assert other.load_state_dict(dict(state), strict=False).missing_keys == missing
    after = records_of(other.tables)
    assert same([of_table("items", after[0])], [of_table("items", theirs[0])])
    assert same([of_table("users", after[0])], [of_table("users", before[0])])
    assert same(after[1:], before[1:])
    with pytest.raises(
        RuntimeError, match=r'Missing key\(s\) in state_dict: "tables.users.records", "tables.cities.rec'
    ):
        trained().load_state_dict(dict(state))


def test_a_table_that_is_new_to_a_checkpoint_is_refused_or_keeps_what_it_has(tmp_path: Path) -> None:
    model, other = trained(), trained(range(5, 7))
    before, theirs = records_of(other.tables), records_of(model.tables)
    saved = {name: each for name, each in model.state_dict().items() if ".cities." not in name}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    state = other.state_dict()
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: tables\.cities\.records"):
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=tmp_path, planner=planner, no_dist=True)
    other.load_state_dict(state)  # The table that the checkpoint lacks keeps its rows.
    assert same(records_of(other.tables), [theirs[0], before[1]])


@pytest.mark.parametrize("call", ["import_records", "resume_step"])
@pytest.mark.parametrize("dim", [8, 4])
def test_an_error_in_one_table_leaves_all_as_they_were(monkeypatch: pytest.MonkeyPatch, dim: int, call: str) -> None:
    model, state = trained(), trained(range(4)).state_dict()
    before, whole = records_of(model.tables), getattr(Table, call)

    def fail(table: Table, *arguments: Any, **options: Any) -> Any:
        if table.dim == dim:
            raise MemoryError("no room")
        return whole(table, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
        patch.setattr(Table, call, fail)
        model.load_state_dict(dict(state))
    assert same(records_of(model.tables), before) and model.tables.step == 3
    train(model.tables, range(3, 4))


def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    dcp.save(trained(range(4)).state_dict(), checkpoint_id=tmp_path, no_dist=True)
    (data,) = tmp_path.glob("*.distcp")
    content = data.read_bytes()
    model = trained()
    before = records_of(model.tables)
    for damaged in (content[: len(content) // 2], None):
        data.unlink() if damaged is None else data.write_bytes(damaged)
        with pytest.raises(CheckpointException):
            dcp.load(model.state_dict(), checkpoint_id=tmp_path, no_dist=True)
        assert same(records_of(model.tables), before)
