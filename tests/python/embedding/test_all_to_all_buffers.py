# SPDX-License-Identifier: Apache-2.0
"""Rows of several merged tables are packed into one exchange; those of a single table are sent in place.

``all_to_all_arguments()`` takes the rows of each table, and the numbers of rows to send to and to receive from each
rank. It returns receive buffer, send buffer, receive splits and send splits. With several tables the buffers are flat
and splits count elements; with one table they count rows. ``by_table()`` unpacks such a buffer.

Shapes: G merged tables (they share storage), R ranks.
"""

from __future__ import annotations

import pytest
import torch
from headway._embedding import all_to_all_arguments, by_table


def counts(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def test_tables_come_out_of_what_ranks_send() -> None:
    wide, narrow = torch.arange(6).view(3, 2), torch.arange(6, 10).view(4, 1)
    counts_GR = counts([1, 2], [3, 1])
    _, flat, _, send_splits = all_to_all_arguments([wide, narrow], counts_GR, counts_GR)
    assert flat.tolist() == [0, 1, 6, 7, 8, 2, 3, 4, 5, 9]
    assert send_splits == [5, 5]
    for found, values in zip(by_table(flat, counts_GR, [2, 1]), (wide, narrow), strict=True):
        assert torch.equal(found, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("num_ranks", [1, 3, 40])
def test_pieces_are_those_of_cat_for_any_counts(dtype: torch.dtype, num_ranks: int) -> None:
    torch.manual_seed(num_ranks)
    counts_GR = torch.randint(0, 4, (3, num_ranks))
    widths = [2, 1, 5]
    values = [
        torch.randint(0, 200, (int(rows), width)).to(dtype)
        for rows, width in zip(counts_GR.sum(1), widths, strict=True)
    ]
    received, flat, receive_splits, send_splits = all_to_all_arguments(values, counts_GR, counts_GR.flip(1))
    pieces = [each.split(sizes.tolist()) for each, sizes in zip(values, counts_GR, strict=True)]
    expected = [piece.reshape(-1) for rank in zip(*pieces, strict=True) for piece in rank]
    assert torch.equal(flat, torch.cat(expected))
    assert receive_splits == send_splits[::-1] and len(received) == sum(receive_splits) and received.dtype == dtype
    for found, each in zip(by_table(flat, counts_GR, widths), values, strict=True):
        assert torch.equal(found, each)


def test_one_table_is_not_copied() -> None:
    values = torch.arange(6).view(3, 2)
    received, rows, receive_splits, send_splits = all_to_all_arguments([values], counts([1, 2]), counts([3, 4]))
    assert send_splits == [1, 2] and rows.data_ptr() == values.data_ptr()
    assert received.shape == (7, 2) and receive_splits == [3, 4], "rows of one table stay rows"
    (found,) = by_table(rows, counts([1, 2]), [2])
    assert torch.equal(found, values) and found.data_ptr() == values.data_ptr()
    (nothing,) = by_table(rows[:0], counts([0, 0]), [2])
    assert nothing.shape == (0, 2)


def test_rows_of_one_table_are_sent_from_memory_without_gaps() -> None:
    values = torch.arange(12).view(4, 3)[:, :2]
    _, rows, _, _ = all_to_all_arguments([values], counts([3, 1]), counts([0, 0]))
    assert torch.equal(rows, values) and rows.is_contiguous()


def test_counts_that_do_not_fit_are_refused() -> None:
    wide, narrow = torch.zeros(3, 2), torch.zeros(4, 1)
    for sent_GR in (counts([1, 1], [3, 1]), counts([1, 2]), counts([5, -2], [3, 1]), counts([1, 2], [3, 1]).int()):
        with pytest.raises(ValueError, match="count"):
            all_to_all_arguments([wide, narrow], sent_GR, counts([1, 1], [1, 1]))
    with pytest.raises(ValueError, match="one type"):
        all_to_all_arguments([wide, narrow.double()], counts([1, 2], [3, 1]), counts([1, 1], [1, 1]))
    with pytest.raises(ValueError, match="elements of the buffer"):
        by_table(torch.zeros(9), counts([1, 2], [3, 1]), [2, 1])
