# SPDX-License-Identifier: Apache-2.0
"""Merging of tables: tables of equal configuration share one hash table, one lookup and one exchange.

Idea: each hash table costs kernel launches and exchanges in every batch, however few ids it sees. Tables that differ
in their name alone are therefore merged. A key is the pair (table id, id). The table id is the CRC-32 of the
table's name.

Example: "user" and "item" (both dim 64, Adam with lr 1e-3) become the merged table "user+item". Id 7 has two keys
there, (crc32("user"), 7) and (crc32("item"), 7), and so two rows. "city" (dim 32) stays alone, as does a table with
``max_rows`` or ``max_pending``.

Invariants: a table id depends on the name only, so it is the same in every collection, rank and checkpoint.
Two tables of a collection never have the same id: merge_tables() raises. Ids keep all 64 bits.
Complexity: linear in the number of tables; 4 bytes more for each key.
Source: MTGRBoost, section 4.2. Its equation 8 puts a table index into the high bits of the id; here the table id is
a word of its own, so an id may have any value.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from headway import _embedding
from headway.embedding.config import TableConfig

#: Limit of pending ids per rank of a merged table without ``max_pending``: about 130 MB of keys.
MOST_PENDING = 1 << 22


def table_id_of(name: str) -> int:
    """Returns the id of a table in keys. It depends on the name alone, so other tables may be added or removed."""
    return zlib.crc32(name.encode())


def table_ids_of(names: Iterable[str]) -> torch.Tensor:
    """Returns the table ids of N names with the bits that keys have, (N,) int32."""
    return torch.tensor([table_id_of(name) for name in names], dtype=torch.int64).to(torch.int32)


def merge_key(table: TableConfig) -> TableConfig:
    """Returns a value that is equal for tables that may be merged.

    Tables with a limit are not merged: a flood of new ids in one of them would evict the rows, or drop the pending
    keys, of another table that never reached its limit.
    """
    has_limit = table.max_rows is not None or table.max_pending is not None
    return table if has_limit else replace(table, name="-")


@dataclass(frozen=True)
class MergedTable:
    """Tables that share one hash table."""

    tables: tuple[TableConfig, ...]  #: Equal except for their names.

    @property
    def config(self) -> TableConfig:
        """The configuration that the tables share; its name is that of the first one."""
        return self.tables[0]

    @property
    def name(self) -> str:
        """Names of the tables, joined by "+"."""
        return "+".join(table.name for table in self.tables)

    def build(
        self, *, seed: int, num_ranks: int, thread_pool: _embedding.ThreadPool, device: torch.device | None = None
    ) -> _embedding.Table:
        """Makes the empty shard of one rank, if ``num_ranks`` ranks share the table.

        Args:
            seed: seed of initial embeddings.
            num_ranks: ranks that share the table.
            thread_pool: threads of a table on the CPU.
            device: device of the table; None: the CPU.
        Raises:
            ValueError: a limit is out of range for one rank.
        """
        try:
            return _embedding.Table(
                **self.settings(seed=seed, num_ranks=num_ranks), thread_pool=thread_pool, device=device
            )
        except ValueError as error:
            raise ValueError(f"table {self.name} of {num_ranks} ranks: {error}") from error

    def settings(self, *, seed: int, num_ranks: int) -> dict[str, Any]:
        """Returns arguments of ``_embedding.Table`` for one of ``num_ranks`` shards: all but threads and device."""
        config = self.config
        max_rows = _share(config.max_rows, num_ranks)
        eviction = config.eviction

        def rows_at(fraction: float) -> int | None:
            return None if max_rows is None else int(max_rows * fraction)

        return {
            "dim": config.dim,
            "initializer": config.initializer.build(seed),
            "optimizer": config.optimizer.build(),
            "max_rows": max_rows,
            "eviction": "none" if eviction is None else eviction.policy,
            "high_water": None if eviction is None else rows_at(eviction.high_water),
            "low_water": None if eviction is None else rows_at(eviction.low_water),
            "time_to_live": config.time_to_live,
            "min_count": config.min_count,
            "max_pending": MOST_PENDING if config.max_pending is None else _share(config.max_pending, num_ranks),
            "hot_count": config.hot_count,
        }


def _share(limit: int | None, num_ranks: int) -> int | None:
    """Returns one rank's share of a limit, with a tenth more if there are several: ranks own unequally many keys."""
    return limit if limit is None or num_ranks == 1 else -(-limit * 11 // (10 * num_ranks))


def merge_tables(tables: Iterable[TableConfig]) -> list[MergedTable]:
    """Merges equal tables. Merged tables are in the order of their first tables.

    Raises:
        ValueError: two tables have the same name, or names with the same table id.
    """
    merged: dict[TableConfig, list[TableConfig]] = {}
    by_id: dict[int, str] = {}
    for table in tables:
        table_id = table_id_of(table.name)
        if table_id in by_id:
            raise ValueError(f"tables {by_id[table_id]} and {table.name} have the same table id: rename one")
        by_id[table_id] = table.name
        merged.setdefault(merge_key(table), []).append(table)
    return [MergedTable(tuple(each)) for each in merged.values()]


def keep_within_limit(names: Iterable[str], table: _embedding.Table) -> None:
    """Evicts loaded rows beyond ``max_rows``, and warns if there were any.

    A rank may hold a tenth more than its share of ``max_rows``. So many ranks can save more rows than fewer ranks have
    room for.
    """
    warn_of_evicted(names, table.evict_beyond_limit())


def warn_of_evicted(names: Iterable[str], evicted: int) -> None:
    """Warns if loaded rows of a merged table had no room."""
    if evicted > 0:
        warnings.warn(
            f"table {'+'.join(names)}: {evicted} loaded rows did not fit into max_rows and were evicted, those of "
            "fewest lookups first unless the table has another policy; load with a larger max_rows to keep them",
            stacklevel=3,
        )


def merged_table_indices(merged_tables: Iterable[MergedTable]) -> Mapping[str, int]:
    """Maps the name of each table to the index of its merged table."""
    return {table.name: index for index, merged in enumerate(merged_tables) for table in merged.tables}
