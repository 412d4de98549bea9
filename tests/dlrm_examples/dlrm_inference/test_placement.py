# SPDX-License-Identifier: Apache-2.0
"""Placement of tables on ranks: each table once, balanced work, and received rows back in table order."""

from __future__ import annotations

import pytest
import torch

from dlrm_examples.dlrm_inference.placement import TablePlacement, lookup_ns, place_tables
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES


@pytest.mark.parametrize(("num_tables", "num_ranks"), [(26, 4), (26, 1), (5, 3), (2, 4), (23, 8)])
def test_each_table_has_one_owner_and_equal_tables_are_dealt_evenly(num_tables: int, num_ranks: int) -> None:
    shares = place_tables([1000] * num_tables, num_ranks=num_ranks).tables_of_rank
    assert sorted(table for share in shares for table in share) == list(range(num_tables))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_no_rank_of_criteo_has_much_more_to_do_than_the_mean(num_ranks: int) -> None:
    placement = place_tables(KAGGLE_CARDINALITIES, num_ranks=num_ranks, lookups_per_row=50.5)
    work = [sum(lookup_ns(KAGGLE_CARDINALITIES[table]) for table in tables) for tables in placement.tables_of_rank]
    assert max(work) < 1.15 * sum(work) / num_ranks


# lookups_per_row: rows that are read and summed for each row sent.
def test_rows_that_are_sent_count_where_few_are_read() -> None:
    few, many = (place_tables([8, 8, 8, 100_000], num_ranks=2, lookups_per_row=n) for n in (1.0, 50.0))
    assert sorted(map(len, few.tables_of_rank)) == [2, 2]
    assert sorted(map(len, many.tables_of_rank)) == [1, 3]


def test_received_rows_come_back_in_table_order_without_a_copy() -> None:
    placement = TablePlacement(((1, 3), (), (0, 2)))
    rows = torch.tensor([[1.0], [1.5], [3.0], [3.5], [0.0], [0.5], [2.0], [2.5]])
    by_table = placement.in_table_order(rows)
    assert [table.flatten().tolist() for table in by_table] == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
    assert {table.untyped_storage().data_ptr() for table in by_table} == {rows.untyped_storage().data_ptr()}
