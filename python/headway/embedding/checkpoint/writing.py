"""How ranks write a checkpoint."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import uuid
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import torch
import torch.distributed as dist

from headway import _embedding
from headway._embedding import Keys, Table
from headway.embedding.checkpoint.background import in_background
from headway.embedding.checkpoint.manifest import MANIFEST_NAME, Block, CheckpointError, Manifest, describe
from headway.embedding.checkpoint.rank_values import common, gather
from headway.embedding.keys import part_of
from headway.embedding.merging import MergedTable

_LOCK = ".lock"
_FILE_NAME = re.compile(r"tables-[0-9a-f]{12}-\d{5}\.bin")
_BLOCK_RECORDS = 1 << 16
_SYNC_BYTES = 1 << 28
_SLICES = 8
_RECORDS_AT_ONCE = 1 << 23  # whose keys are listed, by a look at the whole table, before they are written


def save(
    folder: Path,
    groups: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    step: int,
    process_group: dist.ProcessGroup | None,
    replace: bool = False,
) -> None:
    """Writes the tables of all ranks; all of them call it.

    Args:
        replace: whether a checkpoint with other tables may be replaced.
    Raises:
        CheckpointError: a rank could not write, a table changed meanwhile, another save is under way, or the folder has
            other tables; the checkpoint that was there is good.
    """
    rank = 0 if process_group is None else process_group.rank()
    name = f"tables-{common(uuid.uuid4().hex[:12], process_group)}-{rank:05d}.bin"
    with contextlib.ExitStack() as stack:
        names = {table.name for group in groups for table in group.tables}
        error = common(_begin_save(folder, stack, None if replace else names) if rank == 0 else None, process_group)
        _refuse(folder, [error])
        is_done = False
        try:
            blocks: list[Block] = []
            try:
                with _expect_unchanged(groups, tables):
                    blocks = _write_file(folder / name, tables)
            except Exception as failure:  # Whatever it is, the others must hear of it.
                error = f"rank {rank}: {type(failure).__name__}: {failure}"
            parts = gather((error, blocks), process_group)
            _refuse(folder, [each for each, _ in parts])
            if rank == 0:
                manifest = Manifest(
                    step=step,
                    routing_version=_embedding.ROUTING_VERSION,
                    groups=[describe(group, table) for group, table in zip(groups, tables, strict=True)],
                    blocks=[block for _, part in parts for block in part],
                )
                error = _publish(folder, manifest)
            _refuse(folder, [common(error, process_group)])  # Nobody goes on before it is there.
            is_done = True
        finally:
            if not is_done:
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        if rank == 0:
            _remove_unnamed(folder, {block.file for block in manifest.blocks})


def _refuse(folder: Path, errors: Sequence[str | None]) -> None:
    said = [error for error in errors if error is not None]
    if said:
        raise CheckpointError(f"the checkpoint {folder} could not be written: {'; '.join(said)}")


@contextlib.contextmanager
def _expect_unchanged(groups: Sequence[MergedTable], tables: Sequence[Table]) -> Iterator[None]:
    """Raises RuntimeError if a table has changed in between, so that what was read is of more than one state."""
    before = [table.num_changes() for table in tables]
    yield
    changed = [
        group.name for group, table, number in zip(groups, tables, before, strict=True) if table.num_changes() != number
    ]
    if changed:
        raise RuntimeError(
            f"lookups or updates of other threads changed the tables {', '.join(changed)} while they were written: "
            "call save() between steps"
        )


def _begin_save(folder: Path, stack: contextlib.ExitStack, names: set[str] | None) -> str | None:
    """Makes the folder ours until ``stack`` ends, and removes what a save that was cut off left; says what is wrong.

    With ``names`` the folder must have no checkpoint with other tables.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)
        lock = stack.enter_context((folder / _LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Which the end of the process gives up, too.
    except BlockingIOError:
        return "another save into it is under way"
    except OSError as failure:
        return f"rank 0: {failure}"
    try:
        manifest = Manifest.read(folder)
        others = {name for group in manifest.groups for name in group["tables"]}.difference(names or ())
        if names is not None and others:
            return (
                f"it has a checkpoint with the tables {', '.join(sorted(others))}, which this collection does not "
                "have: save into another folder, or with replace=True"
            )
        named = {block.file for block in manifest.blocks}
    except CheckpointError:
        named = set()
        if (folder / MANIFEST_NAME).exists():
            return None  # Not ours to judge: what it names stays.
    _remove_unnamed(folder, named)
    return None


def _remove_unnamed(folder: Path, named: set[str]) -> None:
    """Removes files of checkpoints that are none, and no others."""
    for path in folder.iterdir():
        if _FILE_NAME.fullmatch(path.name) and path.name not in named:
            with contextlib.suppress(OSError):
                path.unlink()


def _write_file(path: Path, tables: Sequence[Table]) -> list[Block]:
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as writer:
        blocks = list(in_background(writer, partial(_write_block, file), _contents_of(tables)))
        os.fsync(file.fileno())
    return blocks


@dataclass(frozen=True)
class _Contents:
    """What a block will have."""

    group: int
    pending: bool
    num_keys: int
    buckets: tuple[int, int]
    columns: list[memoryview]


def _contents_of(tables: Sequence[Table]) -> Iterator[_Contents]:
    for group, table in enumerate(tables):
        for pending in (False, True):
            for keys, buckets in _slices(table, pending=pending):
                columns = [_bytes_of(each) for each in _columns_of(table, keys, pending=pending)]
                yield _Contents(group, pending, len(keys), buckets, columns)


def _write_block(file: FileIO, contents: _Contents) -> Block:
    offset, crc32 = file.tell(), 0
    for column in contents.columns:
        crc32 = zlib.crc32(column, crc32)
        rest = column
        while rest:
            rest = rest[file.write(rest) :]
    if offset // _SYNC_BYTES != file.tell() // _SYNC_BYTES:
        os.fdatasync(file.fileno())  # The device writes while the next blocks are made.
    name = Path(str(file.name)).name
    return Block(
        name,
        offset,
        file.tell() - offset,
        crc32,
        contents.group,
        contents.pending,
        contents.num_keys,
        *contents.buckets,
    )


def _slices(table: Table, *, pending: bool) -> Iterator[tuple[Keys, tuple[int, int]]]:
    """The keys of a table a block at a time, each with the buckets it may be from."""
    num_keys = table.size()["pending" if pending else "rows"]
    # Several even of a smaller table, as those of one are listed while others are written.
    num_slices = max(num_keys // _RECORDS_AT_ONCE + 1, min(_SLICES, num_keys // (2 * _BLOCK_RECORDS)))
    width = max(1, _embedding.NUM_VIRTUAL_BUCKETS // num_slices)
    for first in range(0, _embedding.NUM_VIRTUAL_BUCKETS, width):
        end = min(first + width, _embedding.NUM_VIRTUAL_BUCKETS)
        keys = table.list_pending(first, end) if pending else table.list(first, end)
        buckets = _embedding.buckets_of(keys)
        for begin in range(0, len(keys), _BLOCK_RECORDS):
            part = slice(begin, begin + _BLOCK_RECORDS)
            yield part_of(keys, part), (int(buckets[part][0]), int(buckets[part][-1]) + 1)


def _columns_of(table: Table, keys: Keys, *, pending: bool) -> tuple[torch.Tensor, ...]:
    assert keys.tables is not None, "listed keys have tables"
    if pending:
        assert keys.counts is not None, "keys that wait have counts"
        return keys.ids, keys.tables, keys.counts
    return keys.ids, keys.tables, *table.export_records(keys)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    # A view of bytes has no dimension of size 0.
    return memoryview(tensor.numpy()).cast("B") if tensor.numel() else memoryview(b"")  # type: ignore[arg-type]


def _publish(folder: Path, manifest: Manifest) -> str | None:
    """Makes the manifest the folder's, at once; says what went wrong."""
    try:
        _sync_folder(folder)
        new = folder / f"{MANIFEST_NAME}.new"
        with new.open("w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / MANIFEST_NAME)
        _sync_folder(folder)
    except OSError as failure:
        return f"rank 0: {failure}"
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
