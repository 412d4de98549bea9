# SPDX-License-Identifier: Apache-2.0
"""Table-wise sharding: assigns whole embedding tables to ranks with balanced load.

Idea: greedy longest-processing-time scheduling. Estimate the cost of each table per row sent, then give the most
expensive remaining table to the rank with the least load.

Example: costs 5, 4, 3, 3 on two ranks: 5 to rank 0, 4 to rank 1, 3 to rank 1 (7), 3 to rank 0 (8).

Invariants: each table has exactly one owner. All ranks compute the same placement (ties go to the lower index).
Complexity: O(T log T + T * R) for T tables and R ranks.
Source: Graham, "Bounds on multiprocessing timing anomalies", 1969.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

_SENT_ROW_NS = 15.0
"""Estimated time in ns to write, send and copy one row of 64 bytes."""


@dataclass(frozen=True)
class TablePlacement:
    """Assignment of T tables to R ranks; each table belongs to one rank.

    Attributes:
        tables_of_rank: (R,) tables of each rank, in the order in which it sends their rows.
    """

    tables_of_rank: tuple[tuple[int, ...], ...]

    @property
    def num_ranks(self) -> int:
        """R, the number of ranks."""
        return len(self.tables_of_rank)

    @cached_property
    def arrival_order(self) -> list[int]:
        """(T,) tables in the order in which their rows arrive: by source rank, then in the order of sending."""
        return [table for tables in self.tables_of_rank for table in tables]

    @cached_property
    def _arrival_positions(self) -> list[int]:
        """(T,) position of each table in ``arrival_order``."""
        return sorted(range(len(self.arrival_order)), key=self.arrival_order.__getitem__)

    def in_table_order(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Splits (T * B, D) received rows into one (B, D) view per table, table 0 first."""
        by_arrival = rows.view(len(self._arrival_positions), -1, rows.shape[1]).unbind(0)
        return [by_arrival[position] for position in self._arrival_positions]


def place_tables(table_rows: Sequence[int], *, num_ranks: int, lookups_per_row: float = 1.0) -> TablePlacement:
    """Repeatedly gives the most expensive remaining table to the rank with the least load.

    With a constant imbalance all ranks wait for the same rank, whatever the bound. Lag cannot hide it.

    Args:
        table_rows: (T,) rows of each table.
        num_ranks: R.
        lookups_per_row: mean number of rows that are read and summed for each row sent.
    """
    costs = [lookups_per_row * lookup_ns(rows) + _SENT_ROW_NS for rows in table_rows]
    loads = [0.0] * num_ranks
    tables_of_rank: list[list[int]] = [[] for _ in range(num_ranks)]
    for table in sorted(range(len(costs)), key=lambda table: (-costs[table], table)):
        rank = loads.index(min(loads))
        tables_of_rank[rank].append(table)
        loads[rank] += costs[table]
    return TablePlacement(tuple(tuple(sorted(tables)) for tables in tables_of_rank))


def lookup_ns(num_rows: int) -> float:
    """Estimates the time in ns to read and add one random row of 64 bytes of a table with ``num_rows`` rows.

    On x86-64 servers it is between 3 ns (a few rows) and 33 ns (ten million rows), as tables outgrow one cache level
    after the other. The fifth root is a fit; it is within 40% of the measured time of each of Criteo's tables.
    """
    return 1.5 + 1.25 * num_rows**0.2
