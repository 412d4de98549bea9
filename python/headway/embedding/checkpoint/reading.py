# SPDX-License-Identifier: Apache-2.0
"""Loading: each rank reads the records that it owns. The package's docstring describes the format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from headway import _embedding
from headway._embedding import Table
from headway.embedding.checkpoint.manifest import Block, CheckpointError, Manifest, describe
from headway.embedding.checkpoint.rank_values import all_gather, broadcast
from headway.embedding.config import NoOptimizer, initial_state_of
from headway.embedding.merging import MergedTable, keep_within_limit, table_id_of


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
    manifest, error = broadcast((manifest, error), process_group)
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
        except Exception as failure:  # Any error must reach the other ranks, which wait in all_gather().
            error = str(failure) if isinstance(failure, CheckpointError) else f"{type(failure).__name__}: {failure}"
    errors = [each for each in all_gather(error, process_group) if each is not None]
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
    expect_fitting(folder, manifest, merged_tables, tables, strict=strict, embeddings_only=embeddings_only)
    sources, targets = sources_of(folder, manifest, rank, num_ranks), []
    for merged, table in zip(merged_tables, tables, strict=True):
        initial_state = initial_state_of(merged.config.optimizer) if embeddings_only else None
        targets.append((table, [table_id_of(each.name) for each in merged.tables], initial_state))
    try:
        _embedding.load_records(sources, targets, rank=rank, num_ranks=num_ranks)
    except (MemoryError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint cannot be read: {error}") from error
    for merged, table in zip(merged_tables, tables, strict=True):
        keep_within_limit([each.name for each in merged.tables], table)


def sources_of(folder: Path, manifest: Manifest, rank: int, num_ranks: int) -> list[tuple[bytes, Any, int, int]]:
    """Returns the blocks that one of ``num_ranks`` ranks reads: path, fields of the block, dim and state size."""
    sources: list[tuple[bytes, Any, int, int]] = []
    for block in _blocks_of_rank(manifest, rank, num_ranks):
        if not 0 <= block.group < len(manifest.groups):
            raise CheckpointError(f"the manifest of the checkpoint {folder} has no merged table {block.group}")
        group = manifest.groups[block.group]
        fields = (block.offset, block.num_bytes, block.crc32, block.pending, block.num_keys)
        fields_and_buckets = (*fields, block.first_bucket, block.end_bucket)
        sources.append((os.fsencode(folder / block.file), fields_and_buckets, group["dim"], group["state_size"]))
    return sources


def _blocks_of_rank(manifest: Manifest, rank: int, num_ranks: int) -> list[Block]:
    """Returns the blocks that have records of this rank, and maybe of others."""
    if manifest.routing_version != _embedding.ROUTING_VERSION:
        return manifest.blocks
    first, end = (_embedding.first_bucket_of(each, num_ranks) for each in (rank, rank + 1))
    return [block for block in manifest.blocks if block.first_bucket < end and block.end_bucket > first]


def expect_fitting(
    folder: Path,
    manifest: Manifest,
    merged_tables: Sequence[MergedTable],
    tables: Sequence[Table],
    *,
    strict: bool,
    embeddings_only: bool,
) -> None:
    """Checks that tables can be read from a checkpoint.

    Raises:
        CheckpointError: they differ.
    """
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
