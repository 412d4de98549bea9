# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables on parameter servers, in the format of ``HashTableCollection.save()``.

Idea: a server is a rank of the checkpoint. It writes and reads its own file, so rows pass through no other process. One
dense worker tells the servers what to do, and has the manifest. All roles see the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway._embedding import ThreadPool
from headway._hybrid import load_tables, save_tables
from headway.embedding.checkpoint.manifest import Block, CheckpointError, Manifest
from headway.embedding.checkpoint.reading import expect_fitting, sources_of
from headway.embedding.checkpoint.writing import save_files
from headway.embedding.config import initial_state_of
from headway.embedding.merging import MergedTable, table_id_of, warn_of_evicted
from headway.hybrid.config import HybridConfig


def save(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    config: HybridConfig,
    *,
    generation: int,
    step: int,
    end: int,
    replace: bool,
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
    Raises:
        CheckpointError: a server could not write, or the folder has other tables. The previous checkpoint stays valid.
    """

    def write(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Block]]:
        saved = save_tables(
            config.servers.addresses,
            generation=generation,
            step=step,
            end=end,
            paths=[os.fsencode(path) for path in paths],
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
        return groups, [
            Block(path.name, offset, num_bytes, crc32, group, pending, num_keys, first_bucket, end_bucket)
            for path, of_server in zip(paths, saved, strict=True)
            for group, (_, _, blocks) in enumerate(of_server)
            for offset, num_bytes, crc32, pending, num_keys, first_bucket, end_bucket in blocks
        ]

    files = range(len(config.servers.addresses))
    save_files(folder.absolute(), merged_tables, write, files=files, step=step, process_group=None, replace=replace)


def load(
    folder: Path,
    merged_tables: Sequence[MergedTable],
    config: HybridConfig,
    *,
    generation: int,
    step: int,
    strict: bool,
    embeddings_only: bool,
) -> int:
    """Lets all servers replace their rows. One dense worker calls it. Afterwards no generation is there.

    Args:
        step: optimizer steps so far.
        strict, embeddings_only: see ``HashTableCollection.load()``. The others are those of ``save()``.
    Returns:
        the optimizer steps of the tables.
    Raises:
        CheckpointError: a file is missing, truncated or altered, or a table does not fit; nothing is changed then.
    """
    folder = folder.absolute()
    manifest = Manifest.read(folder)
    pool = ThreadPool(1)
    empty = [merged.build(seed=0, num_ranks=1, thread_pool=pool) for merged in merged_tables]
    expect_fitting(folder, manifest, merged_tables, empty, strict=strict, embeddings_only=embeddings_only)
    saved = {name for group in manifest.groups for name in group["tables"]}
    targets = []
    for merged in merged_tables:
        initial_state = initial_state_of(merged.config.optimizer) if embeddings_only else None
        targets.append(([table_id_of(each.name) for each in merged.tables if each.name in saved], initial_state))
    keeps_any = any(each.name not in saved for merged in merged_tables for each in merged.tables)
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


def _calls(config: HybridConfig) -> dict[str, Any]:
    return {
        "job": config.job.name,
        "connect_timeout_s": config.job.connect_timeout_s,
        "timeout_s": config.checkpoints.timeout_s,
    }
