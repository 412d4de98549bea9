# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables on parameter servers, in the format of ``HashTableCollection.save()``.

Idea: a server is a rank of the checkpoint. It writes and reads its own file, so rows pass through no other process. One
dense worker tells the servers what to do, and has the manifest. All roles see the same folder.

Small tables (``Replicas``) are one more rank's: that dense worker writes their file, and each reads it. With embedding
workers it has no ids. Then it gives servers the rows by their indices before, and servers hand them out after a load.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import _embedding
from headway._embedding import Table, ThreadPool
from headway._hybrid import load_tables, save_tables, store_rows
from headway.embedding.checkpoint.manifest import Block, CheckpointError, Manifest, describe
from headway.embedding.checkpoint.reading import expect_fitting, sources_of
from headway.embedding.checkpoint.writing import save_files, write_file
from headway.embedding.config import initial_state_of
from headway.embedding.merging import MergedTable, keep_within_limit, table_id_of, warn_of_evicted
from headway.hybrid.config import HybridConfig
from headway.hybrid.replicas import Replicas

if TYPE_CHECKING:  # A type without a name at run time.
    from headway._hybrid import IndexedRows


def save(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    config: HybridConfig,
    *,
    generation: int,
    step: int,
    end: int,
    replace: bool,
    replicas: Replicas | None = None,
) -> None:
    """Lets all servers write their rows, with the steps below ``step`` applied. One dense worker calls it.

    Args:
        folder: the folder; created if it does not exist.
        merged_tables: the tables of the servers.
        config: addresses and limits.
        generation: of the dense workers.
        step: optimizer steps so far.
        end: step from which no lookup comes.
        replace: allow a checkpoint that has other tables to be replaced.
        replicas: small tables, which are saved, too.
    Raises:
        CheckpointError: a server could not write, or the folder has other tables. The previous checkpoint stays valid.
    """

    def write(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Block]]:
        saved = save_tables(
            config.servers.addresses,
            generation=generation,
            step=step,
            end=end,
            paths=[os.fsencode(path) for path in paths[:num_servers]],
            **_calls(config),
        )
        groups = [
            {
                "tables": [each.name for each in merged.tables],
                "dim": dim,
                "state_size": state_size,
                "optimizer": type(merged.config.optimizer).__name__,
            }
            for merged, (dim, state_size, _) in zip(merged_tables, saved[0], strict=True)
        ]
        all_blocks = [
            Block(path.name, offset, num_bytes, crc32, group, pending, num_keys, first_bucket, end_bucket)
            for path, of_server in zip(paths[:num_servers], saved, strict=True)
            for group, (_, _, blocks) in enumerate(of_server)
            for offset, num_bytes, crc32, pending, num_keys, first_bucket, end_bucket in blocks
        ]
        if replicas is not None:
            all_blocks += [
                replace_fields(block, group=block.group + len(groups))
                for block in write_file(paths[num_servers], replicas.tables)
            ]
            groups += [describe(*each) for each in zip(replicas.merged_tables, replicas.tables, strict=True)]
        return groups, all_blocks

    num_servers = len(config.servers.addresses)
    files = range(num_servers + (replicas is not None))
    all_tables = [*merged_tables, *([] if replicas is None else replicas.merged_tables)]
    save_files(folder.absolute(), all_tables, write, files=files, step=step, process_group=None, replace=replace)


def load(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    config: HybridConfig,
    *,
    generation: int,
    step: int,
    strict: bool,
    embeddings_only: bool,
    replicas: Replicas | None = None,
) -> int:
    """Lets all servers replace their rows. One dense worker calls it. Afterwards no generation is there.

    Args:
        step: optimizer steps so far.
        strict, embeddings_only: see ``HashTableCollection.load()``. The others are those of ``save()``.
        replicas: small tables, which ``read_replicas()`` reads.
    Returns:
        the optimizer steps of the tables.
    Raises:
        CheckpointError: a file is missing, truncated or altered, or a table does not fit; nothing is changed then.
    """
    folder = folder.absolute()
    manifest = Manifest.read(folder)
    pool = ThreadPool(1)
    all_tables = [*merged_tables, *([] if replicas is None else replicas.merged_tables)]
    empty = [merged.build(seed=0, num_ranks=1, thread_pool=pool) for merged in all_tables]
    expect_fitting(folder, manifest, all_tables, empty, strict=strict, embeddings_only=embeddings_only)
    saved = {name for group in manifest.groups for name in group["tables"]}
    targets = []
    for merged in merged_tables:
        initial_state = initial_state_of(merged.config.optimizer) if embeddings_only else None
        targets.append(([table_id_of(each.name) for each in merged.tables if each.name in saved], initial_state))
    keeps_any = any(each.name not in saved for merged in all_tables for each in merged.tables)
    manifest = _with_tables(manifest, merged_tables)
    loaded_step = max(int(manifest.step), step) if keeps_any else int(manifest.step)
    num_servers = len(config.servers.addresses)
    try:
        evicted = load_tables(
            config.servers.addresses,
            generation=generation,
            step=loaded_step,
            sources=[sources_of(folder, manifest, server, num_servers) for server in range(num_servers)],
            tables=targets,
            **_calls(config),
        )
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from error
    for merged, *counts in zip(merged_tables, *evicted, strict=True):
        warn_of_evicted([each.name for each in merged.tables], sum(counts))
    return loaded_step


def store_replicas(replicas: Replicas, config: HybridConfig, *, generation: int, first_merged: int) -> None:
    """Gives servers the rows of small tables, which have row indices here. One dense worker calls it.

    Args:
        replicas: with row indices.
        config: addresses and limits.
        generation: of the dense workers.
        first_merged: number of the first small table among the merged tables of servers.
    """
    num_servers = len(config.servers.addresses)
    rows: list[list[tuple[int, IndexedRows]]] = [[] for _ in range(num_servers)]
    for index in range(len(replicas.tables)):
        of_replica = replicas.rows(index)
        for server, of_server in enumerate(rows):
            chosen = of_replica[0] % num_servers == server
            columns: list[Any] = [column[chosen] for column in of_replica]
            columns[0] = columns[0] // num_servers
            of_table: Any = tuple(columns)
            of_server.append((first_merged + index, of_table))
    store_rows(config.servers.addresses, generation=generation, rows=rows, **_calls(config))


def read_replicas(folder: Path, replicas: Replicas, *, embeddings_only: bool) -> list[Table]:
    """Reads small tables into new ones. Each dense worker calls it. Tables that the checkpoint lacks stay.

    Raises:
        CheckpointError: a file is missing, truncated or altered, or a table does not fit.
    """
    folder = folder.absolute()
    manifest = Manifest.read(folder)
    saved = {name for group in manifest.groups for name in group["tables"]}
    tables = [
        new if merged.name in saved else present
        for merged, present, new in zip(replicas.merged_tables, replicas.tables, replicas.build(), strict=True)
    ]
    loaded = [each for each in zip(replicas.merged_tables, tables, strict=True) if each[0].name in saved]
    merged_tables = [merged for merged, _ in loaded]
    expect_fitting(
        folder, manifest, merged_tables, [table for _, table in loaded], strict=False, embeddings_only=embeddings_only
    )
    targets = [
        (table, [table_id_of(merged.name)], initial_state_of(merged.config.optimizer) if embeddings_only else None)
        for merged, table in loaded
    ]
    try:
        sources = sources_of(folder, _with_tables(manifest, merged_tables), 0, 1)
        _embedding.load_records(sources, targets, rank=0, num_ranks=1)
    except (MemoryError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from error
    for merged, table in loaded:
        keep_within_limit([merged.name], table)
    return tables


def _with_tables(manifest: Manifest, merged_tables: Sequence[MergedTable]) -> Manifest:
    """Leaves out blocks that have none of these tables."""
    names = {each.name for merged in merged_tables for each in merged.tables}
    groups = {index for index, group in enumerate(manifest.groups) if names.intersection(group["tables"])}
    return replace_fields(manifest, blocks=[block for block in manifest.blocks if block.group in groups])


def _calls(config: HybridConfig) -> dict[str, Any]:
    return {
        "job": config.job.name,
        "connect_timeout_s": config.job.connect_timeout_s,
        "timeout_s": config.checkpoints.timeout_s,
    }
