# SPDX-License-Identifier: Apache-2.0
"""``ShardedTables``: this rank's shard of the tables of a collection: rows, steps, checkpoints and states.

``HashTableCollection`` adds lookups and gradients. Loading makes new tables, fills them, and replaces the present ones
only if nothing failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headway._deprecation import renamed_argument, warn_renamed
from headway._embedding import Keys, KeyStatus, Table, ThreadPool
from headway.embedding import checkpoint
from headway.embedding.config import NoOptimizer
from headway.embedding.keys import owned_by
from headway.embedding.merging import MergedTable, merged_table_indices, table_id_of
from headway.embedding.row_checks import expect_ids, expect_rows
from headway.embedding.state_records import add_records, import_records, take_records, updates_of
from headway.embedding.table_records import Listing, LiveRecords, TableShard


class NoRoomError(RuntimeError):
    """Ids got no row because their table was full."""


class ShardedTables(nn.Module):
    """The tables of a collection, of which each rank holds the rows that it owns. Base of ``HashTableCollection``."""

    process_group: dist.ProcessGroup | None
    device: torch.device
    rank: int
    num_ranks: int
    merged_tables: list[MergedTable]  #: Tables of equal configuration, which share one hash table (merging.py).
    tables: list[Table]  #: This rank's shard of each merged table.
    step: int  #: Optimizer steps so far.
    _lookahead: int  #: Rows looked up in so many last steps are not removed; see ``HashTableCollection``.
    _seed: int
    _thread_pool: ThreadPool

    @property
    def groups(self) -> list[MergedTable]:
        """The old name of ``merged_tables``."""
        warn_renamed("HashTableCollection.groups", "merged_tables")
        return self.merged_tables

    def drop_gradients(self) -> None:
        """Drops pending gradients, which are of rows that a load replaces."""
        raise NotImplementedError

    def drain(self) -> None:
        """Applies gradients that were deferred. All ranks call it."""
        raise NotImplementedError

    def _expect_drained(self) -> None:
        """Raises RuntimeError if gradients are deferred."""
        raise NotImplementedError

    def forget_ahead(self) -> None:
        """Gives up batches that were read ahead. All ranks call it."""
        raise NotImplementedError

    def _expect_nothing_ahead(self) -> None:
        """Raises RuntimeError if gradients are deferred, or batches were read ahead."""
        raise NotImplementedError

    def _replace_tables(self) -> None:
        """Called after a load has replaced elements of ``tables``."""
        raise NotImplementedError

    def _build_tables(self) -> list[Table]:
        return [
            merged.build(seed=self._seed, num_ranks=self.num_ranks, thread_pool=self._thread_pool, device=self.device)
            for merged in self.merged_tables
        ]

    def _shards(self) -> list[TableShard]:
        return [
            TableShard(
                tuple(each.name for each in merged.tables),
                table,
                self.step,
                self.rank,
                self.num_ranks,
                is_read_only=isinstance(merged.config.optimizer, NoOptimizer),
            )
            for merged, table in zip(self.merged_tables, self.tables, strict=True)
        ]

    # Steps

    def _begin_step(self, tables: Iterable[Table], step: int) -> None:
        """Assigns future lookups to step ``step`` + 1; rows looked up in the last ``lookahead`` steps stay."""
        for table in tables:
            table.begin_step(step + 1, max(step + 1 - self._lookahead, 0))

    def _resume_step(self, tables: Iterable[Table], step: int) -> None:
        """Like ``_begin_step()``, for loaded tables; it evicts and expires nothing."""
        for table in tables:
            table.resume_step(step + 1, max(step + 1 - self._lookahead, 0))

    def halve_counts(self) -> None:
        """Halves the lookup counts of all rows. Rows that fall below ``hot_count`` go back to bfloat16."""
        self._expect_nothing_ahead()
        for table in self.tables:
            table.halve_counts()

    # Rows

    def rows(self, table: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the ids of this rank's rows of a table, (K,) int64, and their embeddings, (K, dim), on the CPU.

        Raises:
            ValueError: there is no such table.
        """
        records = self._records_of(table).read()
        return records.ids_K, records.embeddings_KD

    @renamed_argument("vectors_KD", "embeddings_KD")
    def insert_rows(self, table: str, ids_K: torch.Tensor, embeddings_KD: torch.Tensor) -> int:
        """Sets the embeddings of ids. An id without a row gets one, whatever ``min_count`` is.

        An existing row keeps its optimizer state. Each rank takes the ids that it owns and ignores the others, so a row
        must be passed on the rank that owns it: pass all rows on all ranks. Call it between steps.

        Args:
            table: the name of the table.
            ids_K: (K,) int64, distinct.
            embeddings_KD: (K, dim) float32.
        Returns:
            the number of rows that this rank took.
        Raises:
            ValueError: there is no such table, shapes do not fit, or an id occurs twice; nothing is changed then.
            NoRoomError: the table is full; the rows that fit are in it.
        """
        self._expect_nothing_ahead()
        shard = self._shard_of(table)
        ids_K, embeddings_KD = ids_K.cpu(), embeddings_KD.cpu()
        expect_rows(table, ids_K, embeddings_KD, dim=shard.table.dim)
        own = owned_by(Keys(ids_K, table=table_id_of(table)), shard.rank, shard.num_ranks)
        keys = Keys(ids_K[own], table=table_id_of(table))
        statuses_K = shard.table.insert_or_assign(keys.to(self.device), embeddings_KD[own].to(self.device))
        refused = int((statuses_K == KeyStatus.NO_ROOM.value).sum())
        if refused > 0:
            raise NoRoomError(f"{refused} of {len(own)} ids got no row: table {table} is full")
        return len(own)

    def erase_rows(self, table: str, ids_K: torch.Tensor) -> None:
        """Removes the rows of ids. Call it between steps.

        Args:
            table: the name of the table.
            ids_K: (K,) int64, passed on all ranks; each removes the ids that it owns. Ids without a row are ignored.
        Raises:
            ValueError: there is no such table, or the ids are not (K,) int64.
        """
        self._expect_nothing_ahead()
        shard = self._shard_of(table)
        expect_ids(table, ids_K)
        keys = Keys(torch.unique(ids_K.cpu()), table=table_id_of(table))
        own = owned_by(keys, shard.rank, shard.num_ranks)
        shard.table.erase(Keys(keys.ids[own], table=table_id_of(table)).to(self.device))

    def _shard_of(self, table: str) -> TableShard:
        self._expect_drained()
        for shard in self._shards():
            if table in shard.names:
                return shard
        raise ValueError(f"there is no table {table}; there are: {', '.join(merged_table_indices(self.merged_tables))}")

    def _records_of(self, table: str) -> LiveRecords:
        shard = self._shard_of(table)
        return LiveRecords(Listing(shard), table, shard.buckets)

    # Checkpoints

    def save(self, folder: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Saves all tables to ``folder``: ids, embeddings, optimizer states, counts and steps.

        All ranks call it between steps. Learning rates are not saved: they are in ``optimizer.state_dict()``.

        Args:
            folder: created if it does not exist; an older checkpoint in it is replaced.
            replace: allow a checkpoint with tables that this collection does not have to be replaced.
        Raises:
            CheckpointError: a rank could not write, a table changed while it was written, or the folder has the
                checkpoint of other tables. The previous checkpoint stays valid.
        """
        self.drain()
        checkpoint.save(
            Path(folder),
            self.merged_tables,
            self.tables,
            step=self.step,
            process_group=self.process_group,
            replace=replace,
        )

    def load(self, folder: str | os.PathLike[str], *, strict: bool = True, embeddings_only: bool = False) -> None:
        """Replaces all tables by those of a checkpoint that any number of ranks wrote. All ranks call it.

        Args:
            folder: folder that ``save()`` wrote.
            strict: require the checkpoint to have exactly the tables of this collection. Otherwise tables that it lacks
                keep their rows, and tables that this collection lacks are skipped.
            embeddings_only: read embeddings, counts and steps, and start with new optimizer states. The checkpoint may
                then have another optimizer.
        Raises:
            CheckpointError: a file is missing, truncated or altered, or a table differs; nothing is changed then.
        """
        self.drain()
        self.forget_ahead()
        tables = self._build_tables()
        step, names = checkpoint.load(
            Path(folder),
            self.merged_tables,
            tables,
            process_group=self.process_group,
            strict=strict,
            embeddings_only=embeddings_only,
        )
        for index, shard in enumerate(self._shards()):
            kept = [name for name in shard.names if name not in names]
            if len(kept) == len(shard.names):
                tables[index] = shard.table
            elif kept:
                listing = Listing(shard)
                read = [(name, listing.read(name, shard.buckets)) for name in kept]
                import_records(replace(shard, table=tables[index]), read)
            if kept:
                step = max(step, self.step)
        self._go_on_with(tables, step=step)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._expect_drained()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        add_records(self._shards(), destination, prefix)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self._expect_nothing_ahead()
        shards = self._shards()
        read = take_records(
            shards,
            state_dict,
            prefix,
            missing_keys=missing_keys,
            unexpected_keys=unexpected_keys,
            error_msgs=error_msgs,
        )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if not any(read):
            return
        tables = self._build_tables()
        for index, (shard, records) in enumerate(zip(shards, read, strict=True)):
            if records:
                import_records(replace(shard, table=tables[index]), records)
            else:
                tables[index] = shard.table
        self._go_on_with(tables, step=max(updates_of(records) if records else self.step for records in read))

    def _go_on_with(self, tables: Sequence[Table], *, step: int) -> None:
        kept = [table for table in tables if table in self.tables]
        # All or nothing: prepare new tables, which may fail, before they replace the present ones.
        self._resume_step([table for table in tables if table not in kept], step)
        self.tables[:], self.step = tables, step
        self._replace_tables()
        self.drop_gradients()
        self._resume_step(kept, step)
