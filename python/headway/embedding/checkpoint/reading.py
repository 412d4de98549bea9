# SPDX-License-Identifier: Apache-2.0
"""Loading: each rank reads the records that it owns."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway import _embedding
from headway._embedding import Keys, Table
from headway.embedding.checkpoint.background import in_background
from headway.embedding.checkpoint.manifest import Block, CheckpointError, Manifest, describe
from headway.embedding.checkpoint.rank_values import common, gather
from headway.embedding.config import NoOptimizer, initial_state_of
from headway.embedding.keys import owned_by, select_keys
from headway.embedding.merging import MergedTable, keep_within_limit, merged_table_indices, table_ids_of


def load(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    process_group: dist.ProcessGroup | None,
    strict: bool,
    embeddings_only: bool,
) -> tuple[int, frozenset[str]]:
    """Reads the records of this rank into empty tables. All ranks call it.

    Args:
        folder: folder that ``save()`` wrote.
        merged_tables: the merged tables of the collection.
        tables: an empty table for each merged table.
        process_group: the ranks that share the tables; None: this rank alone.
        strict: require the checkpoint to have exactly the tables of ``merged_tables``.
        embeddings_only: start with new optimizer states; the checkpoint may then have another optimizer.
    Returns:
        the step of the checkpoint, and the names of its tables.
    Raises:
        CheckpointError: on any rank a file is missing, truncated or altered, or a table does not fit. Raised on all
            ranks.
    """
    rank, num_ranks = (0, 1) if process_group is None else (process_group.rank(), process_group.size())
    manifest, error = None, None
    try:
        manifest = Manifest.read(folder) if rank == 0 else None
    except CheckpointError as failure:
        error = str(failure)
    # All ranks use the manifest that rank 0 read, even if another save replaces it meanwhile.
    manifest, error = common((manifest, error), process_group)
    if manifest is not None:
        try:
            _read_all(
                folder,
                manifest,
                merged_tables,
                tables,
                rank=rank,
                num_ranks=num_ranks,
                strict=strict,
                embeddings_only=embeddings_only,
            )
        except Exception as failure:  # Any error must reach the other ranks, which wait in gather().
            error = str(failure) if isinstance(failure, CheckpointError) else f"{type(failure).__name__}: {failure}"
    errors = [each for each in gather(error, process_group) if each is not None]
    if errors or manifest is None:
        raise CheckpointError("; ".join(dict.fromkeys(errors)))
    return int(manifest.step), frozenset(name for group in manifest.groups for name in group["tables"])


def _read_all(
    folder: Path,
    manifest: Manifest,
    merged_tables: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    rank: int,
    num_ranks: int,
    strict: bool,
    embeddings_only: bool = False,
) -> None:
    _expect_fitting(folder, manifest, merged_tables, tables, strict=strict, embeddings_only=embeddings_only)
    index_of = merged_table_indices(merged_tables)
    first, end = (_embedding.first_bucket_of(each, num_ranks) for each in (rank, rank + 1))
    same_routing = manifest.routing_version == _embedding.ROUTING_VERSION
    wanted = [
        block for block in manifest.blocks
        if not same_routing or (block.first_bucket < end and block.end_bucket > first)
    ]  # fmt: skip

    def read(block: Block) -> _Records:
        records = _read_block(folder, block, manifest.groups[block.group])
        return records.take(owned_by(records.keys, rank, num_ranks)) if num_ranks > 1 else records

    # Pending keys are imported after all rows, because a key with a row is never pending.
    wanted.sort(key=lambda block: block.pending)
    with ThreadPoolExecutor(1) as reader:
        for block, records in zip(wanted, in_background(reader, read, wanted), strict=True):
            for index, of_table in _by_merged_table(records, manifest.groups[block.group]["tables"], index_of):
                initial_state = initial_state_of(merged_tables[index].config.optimizer) if embeddings_only else None
                _import(of_table, tables[index], initial_state, pending=block.pending)
    for merged, table in zip(merged_tables, tables, strict=True):
        keep_within_limit([each.name for each in merged.tables], table)


def _expect_fitting(
    folder: Path,
    manifest: Manifest,
    merged_tables: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    strict: bool,
    embeddings_only: bool,
) -> None:
    saved = {name: group for group in manifest.groups for name in group["tables"]}
    wanted = {
        each.name: describe(merged, table)
        for merged, table in zip(merged_tables, tables, strict=True)
        for each in merged.tables
    }
    if strict and saved.keys() != wanted.keys():
        raise CheckpointError(
            f"the checkpoint {folder} has the tables {', '.join(sorted(saved))}, and not {', '.join(sorted(wanted))}"
        )
    for name in saved.keys() & wanted.keys():
        # A table without an optimizer loads embeddings only.
        has_no_state = embeddings_only or wanted[name]["optimizer"] == NoOptimizer.__name__
        for what in ("dim",) if has_no_state else ("dim", "optimizer", "state_size"):
            if saved[name][what] != wanted[name][what]:
                advice = "" if what == "dim" else ": load with embeddings_only=True to begin with states of its own"
                raise CheckpointError(
                    f"table {name} of the checkpoint {folder} has {what} {saved[name][what]}, not "
                    f"{wanted[name][what]}{advice}"
                )


@dataclass(frozen=True)
class _Records:
    """Keys of a block with their columns."""

    keys: Keys
    columns: tuple[torch.Tensor, ...]  #: counts_K; for keys with rows also steps_K, embeddings_KD, states_KS.

    def take(self, chosen: torch.Tensor) -> _Records:
        return _Records(select_keys(self.keys, chosen), tuple(column[chosen] for column in self.columns))


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


def _by_merged_table(
    records: _Records, saved: Sequence[str], index_of: Mapping[str, int]
) -> Iterator[tuple[int, _Records]]:
    """Splits the records of a saved merged table by the merged table that each belongs to now.

    Args:
        records: records of one block.
        saved: names of the tables that were merged when the block was written.
        index_of: index of the present merged table by table name. Records of tables that are not in it are dropped.
    Yields:
        index of the present merged table, and its records.
    """
    names_of: dict[int | None, list[str]] = {}
    for name in saved:
        names_of.setdefault(index_of.get(name), []).append(name)
    for index, names in names_of.items():
        if index is None:
            continue
        if len(names_of) == 1:
            yield index, records
            continue
        assert records.keys.tables is not None, "records have tables"
        chosen = torch.isin(records.keys.tables, table_ids_of(names))
        yield index, records.take(chosen.nonzero().view(-1))


def _import(records: _Records, table: Table, initial_state: float | None, *, pending: bool) -> None:
    if pending:
        table.import_pending(records.keys)
        return
    counts, steps, embeddings, states = records.columns
    if initial_state is None:
        states = states[:, : table.state_size].contiguous()  # A table without an optimizer has state_size 0.
    else:
        states = torch.full((len(records.keys), table.state_size), initial_state)
    table.import_records(records.keys, (counts, steps, embeddings, states))
