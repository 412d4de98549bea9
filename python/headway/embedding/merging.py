"""Tables without limits that differ in nothing but their name become one, whose keys carry the number of the table."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from headway import _embedding
from headway.embedding.config import TableConfig

#: Ids that wait for a row on one rank in a merged table without ``max_pending``: about 130 MB of keys.
MOST_PENDING = 1 << 22


def table_number(name: str) -> int:
    """The number of a table in keys: it depends on its name alone, so that other tables may come and go."""
    return zlib.crc32(name.encode())


def table_numbers(names: Iterable[str]) -> torch.Tensor:
    """(N,) int32: the numbers of tables, as keys have them."""
    return torch.tensor([table_number(name) for name in names], dtype=torch.int64).to(torch.int32)


def merge_key(table: TableConfig) -> TableConfig:
    """Equal for tables that may be merged.

    Tables with a limit of their own are not: a flood of new ids in one of them would evict the rows, or drop the
    pending keys, of another one that never reached its limit.
    """
    has_limit = table.max_rows is not None or table.max_pending is not None
    return table if has_limit else replace(table, name="-")


@dataclass(frozen=True)
class MergedTable:
    """Tables that share rows, and what they have in common."""

    tables: tuple[TableConfig, ...]

    @property
    def config(self) -> TableConfig:
        return self.tables[0]

    @property
    def name(self) -> str:
        return "+".join(table.name for table in self.tables)

    def build(
        self, *, seed: int, num_ranks: int, workers: _embedding.Workers, device: torch.device | None = None
    ) -> _embedding.Table:
        """The part of one rank of ``num_ranks``; on the CPU unless a ``device`` is given."""
        config = self.config
        max_rows = _share(config.max_rows, num_ranks)
        eviction = config.eviction

        def mark(part: float) -> int | None:
            return None if max_rows is None else int(max_rows * part)

        try:
            return _embedding.Table(
                dim=config.dim,
                initializer=config.initializer.build(seed),
                optimizer=config.optimizer.build(),
                max_rows=max_rows,
                eviction="none" if eviction is None else eviction.policy,
                high_water=None if eviction is None else mark(eviction.high_water),
                low_water=None if eviction is None else mark(eviction.low_water),
                time_to_live=config.time_to_live,
                min_count=config.min_count,
                max_pending=MOST_PENDING if config.max_pending is None else _share(config.max_pending, num_ranks),
                hot_count=config.hot_count,
                workers=workers,
                device=device,
            )
        except ValueError as error:
            raise ValueError(f"table {self.name} of {num_ranks} ranks: {error}") from error


def _share(limit: int | None, num_ranks: int) -> int | None:
    """The part of a limit for all ranks that one may have, with a tenth more where ranks differ."""
    return limit if limit is None or num_ranks == 1 else -(-limit * 11 // (10 * num_ranks))


def merge_tables(tables: Iterable[TableConfig]) -> list[MergedTable]:
    """Groups of equal tables, in the order in which each first comes.

    Raises:
        ValueError: two tables have one name, or names that give the same number.
    """
    groups: dict[TableConfig, list[TableConfig]] = {}
    by_number: dict[int, str] = {}
    for table in tables:
        number = table_number(table.name)
        if number in by_number:
            raise ValueError(f"tables {by_number[number]} and {table.name} have the same number in keys: rename one")
        by_number[number] = table.name
        groups.setdefault(merge_key(table), []).append(table)
    return [MergedTable(tuple(group)) for group in groups.values()]


def keep_within_limit(names: Iterable[str], table: _embedding.Table) -> None:
    """Evicts the rows beyond ``max_rows`` that were loaded, and warns of it.

    Ranks that share a limit may have a tenth more than their share, so that fewer ranks may read more rows than fit.
    """
    evicted = table.evict_beyond_limit()
    if evicted > 0:
        warnings.warn(
            f"table {'+'.join(names)}: {evicted} loaded rows did not fit into max_rows and were evicted, those of "
            "fewest lookups first unless the table has another policy; load with a larger max_rows to keep them",
            stacklevel=2,
        )


def group_of_tables(groups: Iterable[MergedTable]) -> Mapping[str, int]:
    """Which group each table is in, by its name."""
    return {table.name: number for number, group in enumerate(groups) for table in group.tables}
