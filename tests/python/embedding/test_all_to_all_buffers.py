# SPDX-License-Identifier: Apache-2.0
"""Rows of several merged tables are packed into one exchange; those of a single table are sent in place."""

from __future__ import annotations

import torch
from headway.embedding.all_to_all_buffers import all_to_all_arguments, by_rank, by_table, splits


def test_groups_come_out_of_what_ranks_send() -> None:
    wide, narrow = torch.arange(6).view(3, 2), torch.arange(6, 10).view(4, 1)
    counts_GR, widths = [[1, 2], [3, 1]], [2, 1]
    flat = by_rank([wide, narrow], counts_GR)
    assert flat.tolist() == [0, 1, 6, 7, 8, 2, 3, 4, 5, 9]
    assert splits(counts_GR, widths) == [5, 5]
    for found, values in zip(by_table(flat, counts_GR, widths), (wide, narrow), strict=True):
        assert torch.equal(found, values)


def test_one_group_is_not_copied() -> None:
    values = torch.arange(6).view(3, 2)
    rows = by_rank([values], [[1, 2]])
    assert splits([[1, 2]], [2]) == [1, 2]
    (found,) = by_table(rows, [[1, 2]], [2])
    assert torch.equal(found, values) and found.data_ptr() == values.data_ptr()
    (nothing,) = by_table(rows[:0], [[0, 0]], [2])
    assert nothing.shape == (0, 2)


def test_rows_of_one_group_are_sent_from_memory_without_gaps() -> None:
    values = torch.arange(12).view(4, 3)[:, :2]
    rows = by_rank([values], [[3, 1]])
    assert torch.equal(rows, values) and rows.is_contiguous()


def test_an_exchange_has_room_for_what_comes() -> None:
    wide, narrow = torch.arange(6).view(3, 2), torch.arange(6, 10).view(4, 1)
    received, sent, receive_splits, send_splits = all_to_all_arguments(
        [wide, narrow], [[1, 2], [3, 1]], [[4, 0], [1, 2]], [2, 1]
    )
    assert torch.equal(sent, by_rank([wide, narrow], [[1, 2], [3, 1]])) and send_splits == [5, 5]
    assert received.shape == (11,) and receive_splits == [9, 2]
    received, _, receive_splits, _ = all_to_all_arguments([wide], [[1, 2]], [[3, 4]], [2])
    assert received.shape == (7, 2) and receive_splits == [3, 4], "rows of one group stay rows"
