# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables: N ranks save and M ranks load. Damaged files are rejected.

Pending keys (``pending_of``) are ids that were looked up and have no row yet: they get one at ``min_count`` lookups. A
record is a row with its key, counters and optimizer state. The hash of a key gives its virtual bucket, and each rank
owns a range of buckets. A block is a part of a file with the records of some buckets.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import (
    Adam,
    CheckpointError,
    Eviction,
    FeatureConfig,
    HashTableCollection,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
)
from headway.embedding.checkpoint import reading, writing
from rank_processes import DIED, run_ranks
from table_cases import (
    integer_loss,
    join_pending,
    join_records,
    look_up,
    make_batch,
    make_one,
    make_tables,
    pending_of,
    records_of,
    same,
    train,
    vectors_of,
)

TABLE = {"hot_count": 3, "min_count": 2}


def make(group: dist.ProcessGroup | None = None, **more: Any) -> HashTableCollection:
    return make_tables(Adam(lr=0.01), {**TABLE, **more}, process_group=group)


def save_trained(rank: int, folder: str) -> tuple[Any, Any]:
    tables = make(dist.group.WORLD)
    train(tables, range(3), rank)
    tables.save(folder)
    return records_of(tables), pending_of(tables)


def load_and_go_on(rank: int, folder: str) -> tuple[Any, Any, int]:
    tables = make(dist.group.WORLD)
    tables.load(folder)
    found = records_of(tables), pending_of(tables), tables.step
    train(tables, range(3, 4), rank)
    return found


@pytest.mark.parametrize("num_writers", range(1, 9))
def test_any_number_of_ranks_reads_what_any_other_number_wrote(tmp_path: Path, num_writers: int) -> None:
    saved = run_ranks(save_trained, num_writers, str(tmp_path), backend="gloo")
    expected = join_records([records for records, _ in saved])
    waiting = join_pending([pending for _, pending in saved])
    assert waiting and len(expected[0][0]) > 20
    for num_readers in range(1, 9):
        loaded = run_ranks(load_and_go_on, num_readers, str(tmp_path), backend="gloo")
        assert same(join_records([records for records, _, _ in loaded]), expected), num_readers
        assert join_pending([pending for _, pending, _ in loaded]) == waiting
        assert {step for _, _, step in loaded} == {3}


def test_what_goes_on_from_a_checkpoint_is_what_would_have_gone_on(tmp_path: Path) -> None:
    straight, stopped = make(), make()
    train(straight, range(6))
    train(stopped, range(3))
    stopped.save(tmp_path)
    resumed = make()
    resumed.load(tmp_path)
    train(resumed, range(3, 6))
    assert same(records_of(resumed), records_of(straight))
    assert pending_of(resumed) == pending_of(straight)


def test_a_reader_reads_its_own_blocks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_BLOCK_RECORDS", 8)
    tables = make()
    train(tables, range(3))
    tables.save(tmp_path)
    manifest = reading.Manifest.read(tmp_path)
    for rank in range(4):
        read = reading._blocks_of_rank(manifest, rank, 4)
        assert 0 < sum(block.num_keys for block in read) < 0.5 * sum(block.num_keys for block in manifest.blocks)


def damage(folder: Path, how: str) -> str:
    """Damages a checkpoint. Returns the name of the file that the error must mention."""
    (data,) = folder.glob("*.bin")
    content = bytearray(data.read_bytes())
    manifest = folder / "manifest.json"
    if how == "truncated":
        data.write_bytes(content[:-5])
    elif how == "altered":
        content[len(content) // 2] ^= 4
        data.write_bytes(content)
    elif how == "missing":
        data.unlink()
    elif how == "manifest":
        # The file has the manifest as a JSON string beside its checksum, so quotes in it are escaped.
        manifest.write_text(manifest.read_text().replace('\\"step\\": 3', '\\"step\\": 4'))
        return manifest.name
    elif how == "half a manifest":
        manifest.write_text(manifest.read_text()[:-40])
        return manifest.name
    elif how == "another format":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 9}))
        return manifest.name
    return data.name


@pytest.mark.parametrize("how", ["truncated", "altered", "missing", "manifest", "half a manifest", "another format"])
def test_what_was_damaged_is_refused_by_name_and_changes_nothing(tmp_path: Path, how: str) -> None:
    tables = make()
    train(tables, range(3))
    tables.save(tmp_path)
    name = damage(tmp_path, how)
    other = make()
    train(other, range(1, 2))
    before = records_of(other)
    with pytest.raises(CheckpointError, match=name):
        other.load(tmp_path)
    assert same(records_of(other), before) and other.step == 1


def save_twice(rank: int, folder: str, kill_at: str) -> Any:
    """Saves twice. One rank kills itself during the second save: rank 1 in ``data``, rank 0 in ``manifest``."""
    tables = make(dist.group.WORLD)
    train(tables, range(2), rank)
    tables.save(folder)
    saved = records_of(tables)
    Path(folder, f"saved-{rank}").touch()
    train(tables, range(2, 4), rank)

    def die(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1 and kill_at == "data":
        writing._write_slice = die
    if rank == 0 and kill_at == "manifest":
        writing.os.replace = die
    try:
        tables.save(folder)
    except RuntimeError:
        return saved
    return "the second save was done"


@pytest.mark.parametrize("kill_at", ["data", "manifest"])
def test_a_save_that_is_killed_leaves_the_one_before(tmp_path: Path, kill_at: str) -> None:
    results = run_ranks(save_twice, 2, str(tmp_path), kill_at, may_die=True, timeout_s=5)
    killed = 1 if kill_at == "data" else 0
    assert results[killed] is DIED and results[1 - killed] != "the second save was done"
    tables = make()
    tables.load(tmp_path)
    assert tables.step == 2
    # The next save removes the files of the interrupted one.
    tables.save(tmp_path)
    assert len(list(tmp_path.glob("tables-*.bin"))) == 1


def fail_to_write(rank: int, folder: str) -> str:
    tables = make(dist.group.WORLD)
    if rank == 1:
        folder = f"{folder}/file/below"
    try:
        tables.save(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_rank_that_cannot_write_is_named_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for message in run_ranks(fail_to_write, 2, str(tmp_path)):
        assert "rank 1: " in message
    assert not list(tmp_path.glob("tables-*.bin"))


def fail_after_the_rename(rank: int, folder: str) -> str:
    tables = make(dist.group.WORLD)
    train(tables, range(2), rank)
    tables.save(folder)
    train(tables, range(2, 4), rank)
    plain_replace, plain_sync, is_replaced = writing.os.replace, writing._sync_folder, False

    def replace(*arguments: Any) -> None:
        nonlocal is_replaced
        plain_replace(*arguments)
        is_replaced = True

    def sync(synced: Path) -> None:
        if is_replaced:
            raise OSError("the disk is gone")
        plain_sync(synced)

    writing.os.replace, writing._sync_folder = replace, sync
    try:
        tables.save(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_manifest_that_cannot_be_synced_keeps_the_files_that_it_names(tmp_path: Path) -> None:
    for message in run_ranks(fail_after_the_rename, 2, str(tmp_path), backend="gloo"):
        assert message.endswith("rank 0: the disk is gone")
    tables = make()
    tables.load(tmp_path)
    assert tables.step == 4
    assert len(list(tmp_path.glob("tables-*.bin"))) == 4, "a crash may bring the manifest before back"
    tables.save(tmp_path)
    assert len(list(tmp_path.glob("tables-*.bin"))) == 1


def test_ranks_that_lose_each_other_after_the_rename_keep_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = make()
    train(tables, range(2))
    plain = writing.os.replace

    def lose_the_group(*arguments: Any) -> Any:
        raise RuntimeError("a rank is gone")

    def replace(*arguments: Any) -> None:
        plain(*arguments)
        monkeypatch.setattr(writing, "broadcast", lose_the_group)

    monkeypatch.setattr(writing.os, "replace", replace)
    with pytest.raises(RuntimeError, match="a rank is gone"):
        tables.save(tmp_path)
    other = make()
    other.load(tmp_path)
    assert other.step == 2


def fail_to_list(rank: int, folder: str) -> str:
    tables = make(dist.group.WORLD)

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(f"{folder} cannot be listed")

    if rank == 0:
        writing._remove_unnamed = refuse
    try:
        tables.save(folder)
    except CheckpointError as error:
        return str(error)
    return ""


def test_a_folder_that_rank_0_cannot_list_is_named_on_all(tmp_path: Path) -> None:
    for message in run_ranks(fail_to_list, 2, str(tmp_path), backend="gloo", timeout_s=5):
        assert f"rank 0: {tmp_path} cannot be listed" in message


def test_files_that_cannot_be_removed_after_a_save_do_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = make()
    train(tables, range(2))
    plain, num_calls = writing._remove_unnamed, 0

    def refuse_second(*arguments: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise PermissionError("the folder cannot be listed")
        plain(*arguments)

    monkeypatch.setattr(writing, "_remove_unnamed", refuse_second)
    tables.save(tmp_path)
    assert num_calls == 2
    make().load(tmp_path)


def test_all_new_folders_on_the_path_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    plain = writing._sync_folder

    def sync(folder: Path) -> None:
        synced.append(folder)
        plain(folder)

    monkeypatch.setattr(writing, "_sync_folder", sync)
    make().save(tmp_path / "a" / "b")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)


def test_tables_that_differ_are_named(tmp_path: Path) -> None:
    tables = make()
    train(tables, range(2))
    tables.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"table (users|items|cities) .* has optimizer Adam, not RowWiseAdagrad"):
        make_tables(RowWiseAdagrad(lr=1)).load(tmp_path)


def test_other_tables_are_passed_over_only_if_that_is_wanted(tmp_path: Path) -> None:
    both = [TableConfig(name, dim=8, optimizer=Adam(lr=0.01), initializer=Uniform(-1, 1)) for name in ("users", "new")]
    tables = make_tables(Adam(lr=0.01))
    train(tables, range(2))
    tables.save(tmp_path)
    other = HashTableCollection(tables=both, features=[FeatureConfig(each.name, table=each.name) for each in both])
    with pytest.raises(CheckpointError, match="has the tables cities, items, users, and not new, users"):
        other.load(tmp_path)
    other.load(tmp_path, strict=False)
    ids, table_ids, *rest = records_of(tables)[0]
    found = records_of(other)[0]  # All of the table users: the table new has no rows.
    users = table_ids == found[1][0]
    assert 0 < users.sum() < len(ids)
    assert all((a[users] == b).all() for a, b in zip((ids, table_ids, *rest), found, strict=True))


def test_tables_that_are_too_large_for_their_limit_are_read_and_shrink(tmp_path: Path) -> None:
    tables = make(min_count=1)
    train(tables, range(2))
    tables.save(tmp_path)
    plain = make(min_count=1, max_rows=10)
    with pytest.warns(UserWarning, match="table users: .* loaded rows did not fit into max_rows"):
        plain.load(tmp_path)
    saved = {
        (int(table_id), int(key)): int(count)
        for records in records_of(tables)
        for key, table_id, count in zip(*records[:3], strict=True)
    }
    for ids, table_ids, counts, *_ in records_of(plain):  # Tables with max_rows are not merged.
        assert len(ids) == 10
        left = [saved[int(table_id), int(key)] for key, table_id in zip(ids, table_ids, strict=True)]
        assert counts.tolist() == left
        of_table = sorted(count for (table_id, _), count in saved.items() if table_id == table_ids[0])
        assert sorted(left) == of_table[-10:], "those of most lookups stay"
    evicting = make(min_count=1, max_rows=10, eviction=Eviction(policy="lfu"))
    evicting.load(tmp_path)
    train(evicting, range(2, 4))
    assert all(each["rows"] < 100 for each in evicting.statistics()["tables"].values())


def fill_and_wait(tables: HashTableCollection, first: int = 0) -> None:
    """Fills a table of 10 rows. 20 more keys stay pending, although their counts exceed ``min_count``."""
    for ids, steps in ((range(first, first + 10), 2), (range(first + 100, first + 120), 3)):
        for _ in range(steps):
            look_up(tables, *ids)
            tables.optimizer.step()


@pytest.mark.parametrize("how", ["save", "state_dict"])
def test_keys_that_wait_for_a_full_table_still_wait_after_a_restart(tmp_path: Path, how: str) -> None:
    tables, other = make_one(max_rows=10, min_count=2), make_one(max_rows=10, min_count=2)
    fill_and_wait(tables)
    assert sorted(pending_of(tables).values()) == [3] * 20
    if how == "save":
        tables.save(tmp_path)
        other.load(tmp_path)
    else:
        other.load_state_dict(tables.state_dict())
    assert same(records_of(other), records_of(tables))
    assert pending_of(other) == pending_of(tables)
    assert other.statistics()["tables"]["t"]["refused"] == 0, "nothing was looked up"


def save_full(rank: int, folder: str) -> dict[str, int]:
    tables = make_one(max_rows=100, min_count=2, process_group=dist.group.WORLD)
    for _ in range(2):
        look_up(tables, *range(150))
        tables.optimizer.step()
    for _ in range(3):
        look_up(tables, *range(1000 + 50 * rank, 1050 + 50 * rank))
        tables.optimizer.step()
    tables.save(folder)
    return tables.tables[0].size()


def test_fewer_ranks_read_no_more_rows_than_fit_and_all_keys_that_wait(tmp_path: Path) -> None:
    sizes = run_ranks(save_full, 2, str(tmp_path), backend="gloo")
    assert sum(size["rows"] for size in sizes) == 110, "each rank has a tenth more than its share"
    tables = make_one(max_rows=100, min_count=2)
    with pytest.warns(UserWarning, match="table t: 10 loaded rows did not fit"):
        tables.load(tmp_path)
    assert tables.tables[0].size()["rows"] == 100
    assert tables.tables[0].size()["pending"] == sum(size["pending"] for size in sizes) == 100


@pytest.mark.parametrize(
    "options",
    [
        {"min_count": 2, "max_rows": 15},
        {
            "min_count": 4,
            "time_to_live": 5,
            "max_rows": 60,
            "max_pending": 20,
            "eviction": Eviction(policy="lru"),
        },
        {"time_to_live": 2, "max_rows": 60, "eviction": Eviction(policy="lfu")},
        {"min_count": 2, "time_to_live": 3, "hot_count": 3, "max_pending": 20},
    ],
    ids=["full", "lru", "lfu", "cold"],
)
def test_a_run_that_restarts_anywhere_is_the_run_that_does_not(tmp_path: Path, options: dict[str, Any]) -> None:
    draw = random.Random(1)
    straight, restarted = make_tables(Adam(lr=0.01), options), make_tables(Adam(lr=0.01), options)

    def restart() -> None:
        nonlocal restarted
        old, restarted = restarted, make_tables(Adam(lr=0.01), options)
        if draw.random() < 0.5:
            old.save(tmp_path)
            restarted.load(tmp_path)
        else:
            restarted.load_state_dict(old.state_dict())

    for step in range(25):
        batch = make_batch(step, num_ids=20 + 3 * step)
        # Restart between a lookup and its step; both collections drop the gradients. Not with hot_count: a record does
        # not store the precision of a row that became hot in this step.
        if draw.random() < 0.2 and "hot_count" not in options:
            for tables in (straight, restarted):
                tables(batch)
                tables.optimizer.zero_grad()
            restart()
        for tables in (straight, restarted):
            integer_loss(tables(batch), batch).backward()
            tables.optimizer.step()
        if draw.random() < 0.2:
            restart()
        assert same(records_of(restarted), records_of(straight)), step
        assert pending_of(restarted) == pending_of(straight), step


def test_rows_outlive_their_time_in_no_lookup_and_the_same_after_a_restart(tmp_path: Path) -> None:
    tables, ids = make_one(time_to_live=3), range(256)
    look_up(tables, *ids).sum().backward()
    tables.optimizer.step()
    for _ in range(4):
        look_up(tables, 1000)
        tables.optimizer.step()
    assert tables.tables[0].size()["rows"] > 200, "most are not yet removed"
    tables.save(tmp_path)
    other = make_one(time_to_live=3)
    other.load(tmp_path)
    for each in (tables, other):
        assert float(look_up(each.eval(), *ids).detach().abs().sum()) == 0
        each.train()
    for _ in range(64):  # Each step removes the expired rows of one 64th of a table.
        for each in (tables, other):
            look_up(each, 1000)
            each.optimizer.step()
        assert vectors_of(other) == vectors_of(tables)
    assert len(vectors_of(tables)) == 1


def make_named(*names: str) -> HashTableCollection:
    return HashTableCollection(
        tables=[TableConfig(name, dim=2, optimizer=Sgd(lr=1)) for name in names],
        features=[FeatureConfig(name, table=name) for name in names],
    )


def look_up_all(tables: HashTableCollection) -> None:
    tables({each.name: (torch.tensor([1]), torch.tensor([1])) for each in tables.features})


def test_a_folder_with_other_tables_is_refused_unless_they_may_be_replaced(tmp_path: Path) -> None:
    users, items, both = make_named("users"), make_named("items"), make_named("users", "items")
    for each in (users, items, both):
        look_up_all(each)
    users.save(tmp_path)
    with pytest.raises(CheckpointError, match="has a checkpoint with the tables users, which this collection does not"):
        items.save(tmp_path)
    make_named("users").load(tmp_path)
    both.save(tmp_path)  # Allowed: the new checkpoint has all tables of the old one.
    with pytest.raises(CheckpointError, match="with the tables items, which"):
        users.save(tmp_path)
    users.save(tmp_path, replace=True)
    make_named("users").load(tmp_path)
    assert len(list(tmp_path.glob("tables-*.bin"))) == 1


def test_tables_that_a_checkpoint_lacks_keep_what_they_have(tmp_path: Path) -> None:
    users, both = make_named("users"), make_named("users", "items")
    other = HashTableCollection(
        tables=[TableConfig(name, dim=dim, optimizer=Sgd(lr=1)) for name, dim in (("users", 2), ("far", 3))],
        features=[FeatureConfig(name, table=name) for name in ("users", "far")],
    )
    look_up_all(users)
    users.save(tmp_path)
    for tables in (both, other):  # In `both` the missing table is merged with the loaded one, in `other` it is not.
        for _ in range(3):
            look_up_all(tables)
            tables.optimizer.step()
        with pytest.raises(CheckpointError):
            tables.load(tmp_path)
        tables.load(tmp_path, strict=False)
        counts = {
            int(table_id): int(count)
            for _, table_ids, found, *_ in records_of(tables)
            for table_id, count in zip(table_ids, found, strict=True)
        }
        assert sorted(counts.values()) == [1, 3]
        assert tables.step == 3, "rows that are kept are of this step"
        look_up_all(tables)
        tables.optimizer.step()


@pytest.mark.parametrize("change", ["lookup", "update", "halve_counts"])
def test_a_table_that_changes_while_it_is_written_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    tables = make_one()
    look_up(tables, 1, 2).sum().backward()
    tables.save(tmp_path)
    plain, is_changed = writing._write_slice, False

    def change_once(*arguments: Any, **options: Any) -> None:
        nonlocal is_changed
        if not is_changed:
            is_changed = True
            if change == "lookup":
                look_up(tables, 1)
            elif change == "update":
                tables.optimizer.step()
            else:
                tables.halve_counts()
        plain(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="changed the tables t while"):
        patch.setattr(writing, "_write_slice", change_once)
        tables.save(tmp_path)
    assert is_changed
    before = make_one()
    before.load(tmp_path)
    assert before.step == 0 and len(vectors_of(before)) == 2
    tables.save(tmp_path)


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model-00001-of-00002.bin").touch()
    tables = make()
    for step in range(2):
        train(tables, range(step, step + 1))
        tables.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} > {"pytorch_model-00001-of-00002.bin", "manifest.json"}
    assert len(list(tmp_path.glob("tables-*.bin"))) == 1


def test_one_save_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, other = make(), make()
    plain = writing.write_file

    def write(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, "write_file", plain)
        with pytest.raises(CheckpointError, match="another save into it is under way"):
            other.save(tmp_path)
        return plain(*arguments)

    monkeypatch.setattr(writing, "write_file", write)
    tables.save(tmp_path)
    make().load(tmp_path)


def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    tables = make()
    train(tables, range(2))
    tables.save(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    other = make()
    other.load(str(tmp_path / "there"))
    assert same(records_of(other), records_of(tables))
