"""Tables in the state_dict() of a model: any number of ranks loads what any other saved, and never a part of it."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from headway._embedding import Table
from headway.embedding import Adam, HashTableCollection, RowWiseAdagrad, Sgd
from headway.embedding.merging import table_numbers
from headway.embedding.state_records import add_records
from headway.embedding.table_records import RecordsElsewhere
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
    """So many ids that all chunks have some, also those that ranks cut in two."""
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
    train(model.tables, range(5, 6), rank)  # What was there before must go.
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


def expect_refusal(model: Model, state: dict[str, Any], message: str) -> None:
    before, waiting = records_of(model.tables), pending_of(model.tables)
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state)
    assert same(records_of(model.tables), before) and pending_of(model.tables) == waiting
    assert model.tables.step == 3


def test_a_state_that_lacks_records_is_refused_by_name() -> None:
    model, states = trained(), through_a_file(trained(range(4)).state_dict())
    part = "tables.items.records.085.0"
    missing = r"table items: a part of its records is missing, from bucket 5440 on"
    expect_refusal(model, {name: each for name, each in states.items() if name != part}, missing)
    expect_refusal(model, states | {part: RecordsElsewhere()}, missing)
    full = next(name for name, each in states.items() if ".items." in name and len(each.ids_K) > 0)
    shortened = replace(states[full], steps_K=states[full].steps_K[1:])
    expect_refusal(model, states | {full: shortened}, "table items: a column of its records is truncated")
    earlier = through_a_file(trained(range(2)).state_dict())
    expect_refusal(model, states | {part: earlier[part]}, r"table items: its records are of \[2, 4\] updates")
    no_records = r"table items: tables.items.records.085.0 is a Tensor, and no records"
    expect_refusal(model, states | {part: torch.zeros(3)}, no_records)
    strange = replace(states[part], routing_version=9)
    expect_refusal(model, states | {part: strange}, "table items: its records are of routing 9, not 1")
    of_a_rank = {name: each for name, each in states.items() if ".records." not in name}
    add_records([replace(each, rank=1, num_ranks=2) for each in model.tables._parts()], of_a_rank, "tables.")
    expect_refusal(model, of_a_rank, "a part of its records is missing, from bucket 0 on")


def test_states_of_other_tables_are_refused_by_name() -> None:
    state = trained().state_dict()
    for optimizer, has in ((Sgd(lr=1), 0), (RowWiseAdagrad(lr=1), 1)):
        with pytest.raises(RuntimeError, match=rf"table users: .* 8 columns and 16 values .*, not 8 and {has}"):
            make_tables(optimizer).load_state_dict(
                {name.removeprefix("tables."): each for name, each in state.items() if name.startswith("tables.")}
            )
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "tables.more.records"'):
        trained().load_state_dict(state | {"tables.more.records.000.0": state["tables.users.records.000.0"]})


@pytest.mark.parametrize("part", ["256.0", "085.2", "85.0", "other"])
def test_records_under_names_that_no_state_has_are_unexpected(part: str) -> None:
    model, other = trained(), trained(range(5, 6))
    strange = f"tables.items.records.{part}"
    state = model.state_dict() | {strange: model.state_dict()["tables.items.records.085.0"]}
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "{re.escape(strange)}"\.'):
        trained().load_state_dict(state)
    assert other.load_state_dict(state, strict=False).unexpected_keys == [strange]
    assert same(records_of(other.tables), records_of(model.tables))


def of_table(name: str, records: list[Any]) -> list[Any]:
    return [column[records[1] == table_numbers([name]).item()] for column in records]


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
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "tables.cities.records"'):
        trained().load_state_dict(dict(state))
    other.load_state_dict(state, strict=False)
    assert same(records_of(other.tables), [theirs[0], before[1]])


@pytest.mark.parametrize("call", ["import_records", "resume_step"])
@pytest.mark.parametrize("dim", [8, 4])
def test_an_error_in_one_table_leaves_all_as_they_were(monkeypatch: pytest.MonkeyPatch, dim: int, call: str) -> None:
    model, state = trained(), trained(range(4)).state_dict()
    before, whole = records_of(model.tables), getattr(Table, call)

    def fail(table: Table, *arguments: Any) -> Any:
        if table.dim == dim:
            raise MemoryError("no room")
        return whole(table, *arguments)

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
