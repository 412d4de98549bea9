"""Checkpoints of tables: any number of ranks reads what any other number wrote, and nothing that was damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from headway.embedding import Adam, CheckpointError, Eviction, HashTableCollection, RowWiseAdagrad
from headway.embedding.checkpoint import reading, writing
from rank_processes import DIED, run_ranks
from table_cases import join_pending, join_records, make_tables, pending_of, records_of, same, train

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
    read: list[int] = []
    plain = reading._read_block
    monkeypatch.setattr(reading, "_read_block", lambda f, block, g: read.append(block.num_keys) or plain(f, block, g))
    fresh = make()
    reading._read_all(tmp_path, manifest, fresh.groups, fresh.tables, rank=1, num_ranks=4, strict=True)
    assert 0 < sum(read) < 0.5 * sum(block.num_keys for block in manifest.blocks)


def damage(folder: Path, how: str) -> str:
    """Returns the name of the file that the error must have."""
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
    """Dies, on rank 1 or 0, in the middle of the second save."""
    tables = make(dist.group.WORLD)
    train(tables, range(2), rank)
    tables.save(folder)
    saved = records_of(tables)
    Path(folder, f"saved-{rank}").touch()
    train(tables, range(2, 4), rank)

    def die(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == 1 and kill_at == "data":
        writing._bytes_of = die
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
    # And the next one removes what was left behind.
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


def test_tables_that_differ_are_named(tmp_path: Path) -> None:
    tables = make()
    train(tables, range(2))
    tables.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"table (users|items|cities) .* has optimizer Adam, not RowWiseAdagrad"):
        make_tables(RowWiseAdagrad(lr=1)).load(tmp_path)


def test_other_tables_are_passed_over_only_if_that_is_wanted(tmp_path: Path) -> None:
    from headway.embedding import FeatureConfig, TableConfig, Uniform

    both = [TableConfig(name, dim=8, optimizer=Adam(lr=0.01), initializer=Uniform(-1, 1)) for name in ("users", "new")]
    tables = make_tables(Adam(lr=0.01))
    train(tables, range(2))
    tables.save(tmp_path)
    other = HashTableCollection(tables=both, features=[FeatureConfig(each.name, table=each.name) for each in both])
    with pytest.raises(CheckpointError, match="has the tables cities, items, users, and not new, users"):
        other.load(tmp_path)
    other.load(tmp_path, strict=False)
    ids, numbers, *rest = records_of(tables)[0]
    found = records_of(other)[0]
    users = numbers == found[1][0]
    assert 0 < users.sum() < len(ids)
    assert all((a[users] == b).all() for a, b in zip((ids, numbers, *rest), found, strict=True))


def test_tables_that_are_too_large_for_their_limit_are_read_and_shrink(tmp_path: Path) -> None:
    tables = make(min_count=1)
    train(tables, range(2))
    tables.save(tmp_path)
    plain = make(min_count=1, max_rows=10)
    plain.load(tmp_path)
    assert same(records_of(plain), records_of(tables))
    evicting = make(min_count=1, max_rows=10, eviction=Eviction(policy="lfu"))
    evicting.load(tmp_path)
    train(evicting, range(2, 4))
    assert all(each["rows"] < 100 for each in evicting.statistics()["tables"].values())


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
    plain = writing._write_file

    def write(*arguments: Any) -> Any:
        monkeypatch.setattr(writing, "_write_file", plain)
        with pytest.raises(CheckpointError, match="another save into it is under way"):
            other.save(tmp_path)
        return plain(*arguments)

    monkeypatch.setattr(writing, "_write_file", write)
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
