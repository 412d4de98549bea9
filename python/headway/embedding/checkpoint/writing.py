# SPDX-License-Identifier: Apache-2.0
"""Saving: each rank writes one file, then rank 0 replaces the manifest.

Invariant: all files that the manifest on disk names exist. So a rank removes its file after a failure only if no
manifest can name it, and rank 0 removes older files only after the new manifest is on disk. The package's docstring
describes the format.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from headway import _embedding
from headway._embedding import RecordFileWriter, Table
from headway.embedding.checkpoint.manifest import MANIFEST_NAME, Block, CheckpointError, Manifest, describe
from headway.embedding.checkpoint.rank_values import all_gather, broadcast
from headway.embedding.merging import MergedTable

_LOCK = ".lock"
_FILE_NAME = re.compile(r"tables-[0-9a-f]{12}-\d{5}\.bin")
_BLOCK_RECORDS = 1 << 16


def save(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    step: int,
    process_group: dist.ProcessGroup | None,
    replace: bool = False,
) -> None:
    """Writes the tables of all ranks. All ranks call it.

    Args:
        folder: the folder; created if it does not exist.
        merged_tables: the merged tables of the collection (tables that share a hash table, see ``merging.py``).
        tables: this rank's shard of each merged table.
        step: optimizer steps so far.
        process_group: the ranks that share the tables; None: this rank alone.
        replace: allow a checkpoint that has other tables to be replaced.
    Raises:
        CheckpointError: a rank could not write, a table changed during the save, another save is running, or the folder
            has other tables. The previous checkpoint stays valid, or the new one is valid already: its manifest is in
            place, but is perhaps not on disk yet.
    """
    rank = 0 if process_group is None else process_group.rank()

    def write(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Block]]:
        with _expect_unchanged(merged_tables, tables):
            blocks = write_file(paths[0], tables)
        return [describe(merged, table) for merged, table in zip(merged_tables, tables, strict=True)], blocks

    save_files(
        folder, merged_tables, write, files=[rank], step=step, process_group=process_group, replace=replace
    )


def save_files(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    write: Callable[[Sequence[Path]], tuple[list[dict[str, Any]], list[Block]]],
    *,
    files: Sequence[int],
    step: int,
    process_group: dist.ProcessGroup | None,
    replace: bool,
) -> None:
    """Makes a checkpoint of files that others write. All ranks call it; other arguments are those of ``save()``.

    Args:
        write: writes the files of the paths; returns ``Manifest.groups``, and the blocks of its files.
        files: numbers of the files that this rank writes.
    """
    rank = 0 if process_group is None else process_group.rank()
    prefix = f"tables-{broadcast(uuid.uuid4().hex[:12], process_group)}"
    paths = [folder / f"{prefix}-{number:05d}.bin" for number in files]
    with contextlib.ExitStack() as stack:
        names = {table.name for merged in merged_tables for table in merged.tables}
        error = broadcast(_begin_save(folder, stack, None if replace else names) if rank == 0 else None, process_group)
        _refuse(folder, [error])
        may_be_named = False  # Can a manifest in the folder name this rank's files?
        try:
            groups: list[dict[str, Any]] = []
            blocks: list[Block] = []
            try:
                groups, blocks = write(paths)
            except Exception as failure:  # Any error must reach the other ranks, which wait in all_gather().
                error = f"rank {rank}: {type(failure).__name__}: {failure}"
            may_be_named = error is None  # all_gather() may fail on this rank and succeed on rank 0.
            parts = all_gather((error, blocks), process_group)
            errors = [each for each, _ in parts]
            may_be_named = all(each is None for each in errors)
            _refuse(folder, errors)
            if rank == 0:
                manifest = Manifest(
                    step=step,
                    routing_version=_embedding.ROUTING_VERSION,
                    groups=groups,
                    blocks=[block for _, part in parts for block in part],
                )
                error, may_be_named = _publish(folder, manifest)
            # No rank returns before the manifest is on disk.
            error, may_be_named = broadcast((error, may_be_named), process_group)
            _refuse(folder, [error])
        finally:
            if not may_be_named:
                for path in paths:
                    with contextlib.suppress(OSError):
                        path.unlink()
        if rank == 0:
            with contextlib.suppress(OSError):  # The next save removes what is left.
                _remove_unnamed(folder, {block.file for block in manifest.blocks})


def _refuse(folder: Path, errors: Sequence[str | None]) -> None:
    """Raises CheckpointError if there is an error."""
    said = [error for error in errors if error is not None]
    if said:
        raise CheckpointError(f"the checkpoint {folder} could not be written: {'; '.join(said)}")


@contextlib.contextmanager
def _expect_unchanged(merged_tables: Sequence[MergedTable], tables: Sequence[Table]) -> Iterator[None]:
    """Raises RuntimeError if a table changes inside the context: the file would then mix two states."""
    before = [table.num_changes() for table in tables]
    yield
    changed = [
        merged.name
        for merged, table, num_changes in zip(merged_tables, tables, before, strict=True)
        # The number is odd during a change.
        if table.num_changes() != num_changes or num_changes % 2 == 1
    ]
    if changed:
        raise RuntimeError(
            f"lookups or updates of other threads changed the tables {', '.join(changed)} while they were written: "
            "call save() between steps"
        )


def _begin_save(folder: Path, stack: contextlib.ExitStack, names: set[str] | None) -> str | None:
    """Locks the folder until ``stack`` closes, and removes the files of interrupted saves. Rank 0 calls it.

    Args:
        folder: the folder; created if it does not exist.
        stack: holds the lock.
        names: tables that an existing checkpoint may have; None: any.
    Returns:
        an error message, or None.
    """
    try:
        _make_folder(folder)
        lock = stack.enter_context((folder / _LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The kernel releases it if the process dies.
        try:
            manifest = Manifest.read(folder)
        except CheckpointError:
            if (folder / MANIFEST_NAME).exists():
                # Nobody knows which files an unreadable manifest names. They stay until a new manifest replaces it.
                return None
            manifest = None
        if manifest is not None and names is not None:
            others = {name for group in manifest.groups for name in group["tables"]} - names
            if others:
                return (
                    f"it has a checkpoint with the tables {', '.join(sorted(others))}, which this collection does not "
                    "have: save into another folder, or with replace=True"
                )
        _sync_folder(folder)  # The save before may have failed to sync its manifest, and older files go now.
        _remove_unnamed(folder, set() if manifest is None else {block.file for block in manifest.blocks})
    except BlockingIOError:
        return "another save into it is under way"
    except OSError as failure:
        return f"rank 0: {failure}"
    return None


def _make_folder(folder: Path) -> None:
    """Makes the folder and its parents durably, so that a crash of the machine does not lose the path to it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in dict.fromkeys(each.parent for each in (folder, *missing)):
        _sync_folder(parent)


def _remove_unnamed(folder: Path, named: set[str]) -> None:
    """Removes table files whose names are not in ``named``. Other files stay.

    Raises:
        OSError: the folder cannot be listed.
    """
    for path in folder.iterdir():
        if _FILE_NAME.fullmatch(path.name) and path.name not in named:
            with contextlib.suppress(OSError):
                path.unlink()


def write_file(path: Path, tables: Sequence[Table]) -> list[Block]:
    """Writes the file of one rank. A block is written while the next one is exported.

    Each table has the blocks of its rows, then those of its pending keys, which have no row yet.
    """
    writer = RecordFileWriter(os.fsencode(path), records_per_block=_BLOCK_RECORDS)
    groups: list[int] = []  # The merged table of each block.
    for group, table in enumerate(tables):
        for pending in (False, True):
            num_keys = table.size()["pending" if pending else "rows"]
            for buckets in _embedding.bucket_ranges(num_keys, _BLOCK_RECORDS):
                _write_slice(writer, table, buckets, pending=pending)
        groups += [group] * (writer.num_blocks - len(groups))
    return [
        Block(path.name, offset, num_bytes, crc32, group, pending, num_keys, first_bucket, end_bucket)
        for group, (offset, num_bytes, crc32, pending, num_keys, first_bucket, end_bucket) in zip(
            groups, writer.finish(), strict=True
        )
    ]


def _write_slice(writer: RecordFileWriter, table: Table, buckets: tuple[int, int], *, pending: bool) -> None:
    first_bucket, end_bucket = buckets
    writer.write(table, pending=pending, first_bucket=first_bucket, end_bucket=end_bucket)


def _publish(folder: Path, manifest: Manifest) -> tuple[str | None, bool]:
    """Replaces the manifest of the folder atomically.

    Returns:
        an error message or None, and whether the new manifest may be in place.
    """
    may_be_in_place = False
    try:
        _sync_folder(folder)
        new = folder / f"{MANIFEST_NAME}.new"
        with new.open("w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        may_be_in_place = True  # Also if os.replace() fails: a network file system may have done it.
        os.replace(new, folder / MANIFEST_NAME)
        _sync_folder(folder)
    except OSError as failure:
        return f"rank 0: {failure}", may_be_in_place
    return None, True


def _sync_folder(folder: Path) -> None:
    """Makes renames and new names inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
