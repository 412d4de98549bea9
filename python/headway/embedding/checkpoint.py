"""Checkpoints of tables: each rank writes what it owns, and any number of ranks reads what it will own.

A folder holds one checkpoint: ``manifest.json``, and a file for each rank that wrote. A file is a row of blocks, each
the columns of up to 65,536 records of one merged table in the order of their virtual buckets; the manifest says where
blocks are, which buckets they have, and their checksums. It is replaced last and at once, so that a save that is cut
off leaves the checkpoint before it. Keys are (number of the table's name, id): neither other tables nor merging matter.

K records, D values of a vector, S floats of an optimizer's state.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from headway import _embedding
from headway._embedding import Keys, Table
from headway.embedding.keys import owned_by
from headway.embedding.merging import MergedTable, group_of_tables, table_numbers

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_MANIFEST = "manifest.json"
_FORMAT = 1
_LOCK = ".lock"
_FILE_NAME = re.compile(r"tables-[0-9a-f]{12}-\d{5}\.bin")
_BLOCK_RECORDS = 1 << 16
_BLOCKS_AHEAD = 8  # that wait to be written, or are read ahead: 20 to 100 MB each, with wide vectors
_SYNC_BYTES = 1 << 28
_SLICES = 8
_RECORDS_AT_ONCE = 1 << 23  # whose keys are listed, by a look at the whole table, before they are written


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or is not what was written."""


@dataclass(frozen=True)
class Block:
    """Where columns are, and what they are of."""

    file: str
    offset: int
    num_bytes: int
    crc32: int
    group: int  #: of the tables in the manifest
    pending: bool  #: keys that wait for a row, with their counts, instead of records
    num_keys: int
    first_bucket: int
    end_bucket: int


@dataclass(frozen=True)
class Manifest:
    """All about a checkpoint but its records."""

    step: int
    routing_version: int
    groups: list[dict[str, Any]]  #: by merged table: names, dim, state_size, optimizer
    blocks: list[Block]

    def to_json(self) -> str:
        body = json.dumps(asdict(self))
        return json.dumps({"format": _FORMAT, "crc32": zlib.crc32(body.encode()), "manifest": body})

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Raises: CheckpointError: it is not there, not ours, or altered."""
        path = folder / _MANIFEST
        try:
            envelope = json.loads(path.read_text())
            body = envelope["manifest"]
            if envelope["format"] != _FORMAT or zlib.crc32(body.encode()) != envelope["crc32"]:
                raise ValueError("it has another format, or was altered")
            values = json.loads(body)
            return Manifest(**{**values, "blocks": [Block(**block) for block in values["blocks"]]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error


def _describe(group: MergedTable, table: Table) -> dict[str, Any]:
    return {
        "tables": [each.name for each in group.tables],
        "dim": table.dim,
        "state_size": table.state_size,
        "optimizer": type(group.config.optimizer).__name__,
    }


# Writing


def save(
    folder: Path,
    groups: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    step: int,
    process_group: dist.ProcessGroup | None,
) -> None:
    """Writes the tables of all ranks; all of them call it.

    Raises:
        CheckpointError: a rank could not write, or another save is under way; the checkpoint that was there is good.
    """
    rank = 0 if process_group is None else process_group.rank()
    name = f"tables-{_common(uuid.uuid4().hex[:12], process_group)}-{rank:05d}.bin"
    with contextlib.ExitStack() as stack:
        error = _common(_begin_save(folder, stack) if rank == 0 else None, process_group)
        _refuse(folder, [error])
        is_done = False
        try:
            blocks: list[Block] = []
            try:
                blocks = _write_file(folder / name, tables)
            except Exception as failure:  # Whatever it is, the others must hear of it.
                error = f"rank {rank}: {type(failure).__name__}: {failure}"
            parts = _gather((error, blocks), process_group)
            _refuse(folder, [each for each, _ in parts])
            if rank == 0:
                manifest = Manifest(
                    step=step,
                    routing_version=_embedding.ROUTING_VERSION,
                    groups=[_describe(group, table) for group, table in zip(groups, tables, strict=True)],
                    blocks=[block for _, part in parts for block in part],
                )
                error = _publish(folder, manifest)
            _refuse(folder, [_common(error, process_group)])  # Nobody goes on before it is there.
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


def _begin_save(folder: Path, stack: contextlib.ExitStack) -> str | None:
    """Makes the folder ours until ``stack`` ends, and removes what a save that was cut off left; says what is wrong."""
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
        named = {block.file for block in Manifest.read(folder).blocks}
    except CheckpointError:
        named = set()
        if (folder / _MANIFEST).exists():
            return None  # Not ours to judge: what it names stays.
    _remove_unnamed(folder, named)
    return None


def _remove_unnamed(folder: Path, named: set[str]) -> None:
    """Removes files of checkpoints that are none, and no others."""
    for path in folder.iterdir():
        if _FILE_NAME.fullmatch(path.name) and path.name not in named:
            with contextlib.suppress(OSError):
                path.unlink()


def _common(value: Any, process_group: dist.ProcessGroup | None) -> Any:
    """Rank 0's value."""
    if process_group is None:
        return value
    values = [value]
    dist.broadcast_object_list(values, group=process_group, group_src=0)
    return values[0]


def _gather(value: Any, process_group: dist.ProcessGroup | None) -> list[Any]:
    if process_group is None:
        return [value]
    values: list[Any] = [None] * process_group.size()
    dist.all_gather_object(values, value, group=process_group)
    return values


def _write_file(path: Path, tables: Sequence[Table]) -> list[Block]:
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as writer:
        blocks = list(_in_background(writer, partial(_write_block, file), _contents_of(tables)))
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


def _in_background(thread: ThreadPoolExecutor, call: Callable[[_In], _Out], values: Iterable[_In]) -> Iterator[_Out]:
    """``call(value)`` for each, in their order, some of them ahead of what is asked for: in ``thread``."""
    calls: deque[Future[_Out]] = deque()
    try:
        for value in values:
            calls.append(thread.submit(call, value))
            if len(calls) > _BLOCKS_AHEAD:
                yield calls.popleft().result()
        while calls:
            yield calls.popleft().result()
    finally:
        for each in calls:
            each.cancel()


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
            yield _part_of(keys, part), (int(buckets[part][0]), int(buckets[part][-1]) + 1)


def _part_of(keys: Keys, part: slice | torch.Tensor) -> Keys:
    assert keys.tables is not None, "listed keys have tables"
    return Keys(keys.ids[part], keys.tables[part], counts=None if keys.counts is None else keys.counts[part])


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
        new = folder / f"{_MANIFEST}.new"
        with new.open("w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / _MANIFEST)
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


# Reading


def load(
    folder: Path,
    groups: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    process_group: dist.ProcessGroup | None,
    strict: bool,
) -> int:
    """Reads into empty tables what this rank owns; all ranks call it.

    Returns:
        the step of the checkpoint.
    Raises:
        CheckpointError: on any rank a file is missing, truncated or altered, or tables do not fit; ``strict``: there
            are others.
    """
    rank, num_ranks = (0, 1) if process_group is None else (process_group.rank(), process_group.size())
    manifest, error = None, None
    try:
        manifest = Manifest.read(folder) if rank == 0 else None
    except CheckpointError as failure:
        error = str(failure)
    # One for all ranks, whatever is saved meanwhile.
    manifest, error = _common((manifest, error), process_group)
    if manifest is not None:
        try:
            _read_all(folder, manifest, groups, tables, rank=rank, num_ranks=num_ranks, strict=strict)
        except Exception as failure:  # Whatever it is, the others must hear of it.
            error = str(failure) if isinstance(failure, CheckpointError) else f"{type(failure).__name__}: {failure}"
    errors = [each for each in _gather(error, process_group) if each is not None]
    if errors or manifest is None:
        raise CheckpointError("; ".join(dict.fromkeys(errors)))
    return int(manifest.step)


def _read_all(
    folder: Path,
    manifest: Manifest,
    groups: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    rank: int,
    num_ranks: int,
    strict: bool,
) -> None:
    _expect_fitting(folder, manifest, groups, tables, strict=strict)
    group_of = group_of_tables(groups)
    first, end = (_embedding.first_bucket_of(each, num_ranks) for each in (rank, rank + 1))
    same_routing = manifest.routing_version == _embedding.ROUTING_VERSION
    wanted = [
        block for block in manifest.blocks
        if not same_routing or (block.first_bucket < end and block.end_bucket > first)
    ]  # fmt: skip

    def read(block: Block) -> _Records:
        records = _read_block(folder, block, manifest.groups[block.group])
        return records.take(owned_by(records.keys, rank, num_ranks)) if num_ranks > 1 else records

    with ThreadPoolExecutor(1) as reader:
        for block, records in zip(wanted, _in_background(reader, read, wanted), strict=True):
            for group, part in _by_group(records, manifest.groups[block.group]["tables"], group_of):
                _import(part, tables[group], pending=block.pending)


def _expect_fitting(
    folder: Path, manifest: Manifest, groups: Sequence[MergedTable], tables: Sequence[Table], *, strict: bool
) -> None:
    saved = {name: group for group in manifest.groups for name in group["tables"]}
    wanted = {
        each.name: _describe(group, table) for group, table in zip(groups, tables, strict=True) for each in group.tables
    }
    if strict and saved.keys() != wanted.keys():
        raise CheckpointError(
            f"the checkpoint {folder} has the tables {', '.join(sorted(saved))}, and not {', '.join(sorted(wanted))}"
        )
    for name in saved.keys() & wanted.keys():
        for what in ("dim", "optimizer", "state_size"):
            if saved[name][what] != wanted[name][what]:
                raise CheckpointError(
                    f"table {name} of the checkpoint {folder} has {what} {saved[name][what]}, not {wanted[name][what]}"
                )


@dataclass(frozen=True)
class _Records:
    """Keys with all that is known of them: counts, and of rows steps, vectors and states."""

    keys: Keys
    columns: tuple[torch.Tensor, ...]

    def take(self, chosen: torch.Tensor) -> _Records:
        return _Records(_part_of(self.keys, chosen), tuple(column[chosen] for column in self.columns))


def _read_block(folder: Path, block: Block, group: dict[str, Any]) -> _Records:
    path = folder / block.file
    try:
        with path.open("rb") as file:
            file.seek(block.offset)
            data = bytearray(file.read(block.num_bytes))
    except OSError as error:
        raise CheckpointError(f"{path} of the checkpoint cannot be read: {error}") from error
    if len(data) != block.num_bytes:
        raise CheckpointError(f"{path} is truncated: {len(data)} of {block.num_bytes} bytes at {block.offset}")
    if zlib.crc32(data) != block.crc32:
        raise CheckpointError(f"{path} was altered: the checksum of {block.num_bytes} bytes at {block.offset} is wrong")
    widths = [(torch.int64, None), (torch.int32, None), (torch.int32, None)]
    if not block.pending:
        widths += [(torch.int32, None), (torch.float32, group["dim"]), (torch.float32, group["state_size"])]
    columns, at = [], 0
    for dtype, width in widths:
        shape = (block.num_keys,) if width is None else (block.num_keys, width)
        count = block.num_keys * (1 if width is None else width)
        column = torch.frombuffer(data, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
        columns.append(column.view(shape))
        at += count * dtype.itemsize
    return _Records(Keys(columns[0], columns[1], counts=columns[2]), tuple(columns[2:]))


def _by_group(records: _Records, saved: Sequence[str], group_of: Mapping[str, int]) -> Iterator[tuple[int, _Records]]:
    """The records of tables that were ``saved`` together, by the group in which they are now; of others none."""
    groups: dict[int | None, list[str]] = {}
    for name in saved:
        groups.setdefault(group_of.get(name), []).append(name)
    for group, names in groups.items():
        if group is None:
            continue
        if len(groups) == 1:
            yield group, records
            continue
        assert records.keys.tables is not None, "records have tables"
        chosen = torch.isin(records.keys.tables, table_numbers(names))
        yield group, records.take(chosen.nonzero().view(-1))


def _import(records: _Records, table: Table, *, pending: bool) -> None:
    if pending:
        table.find_or_insert(records.keys.to(table.device))
        return
    counts, steps, vectors, states = records.columns
    table.import_records(records.keys, (counts, steps, vectors, states))
