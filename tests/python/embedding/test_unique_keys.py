# SPDX-License-Identifier: Apache-2.0
"""Unique keys of a batch: their order, reordering, and owner ranks. The suffix R stands for the ranks."""

from __future__ import annotations

import pytest
import torch
from headway.embedding import keys as keys_module
from headway.embedding.keys import Deduplicator, Keys, ThreadPool, reorder, route


def test_unique_keys_in_another_order_have_values_in_that_order() -> None:
    keys = Keys(torch.tensor([5, 7, 5, 9]), torch.tensor([1, 1, 1, 2], dtype=torch.int32))
    deduplicator = Deduplicator(ThreadPool(1))
    unique = reorder(deduplicator.deduplicate(keys), torch.tensor([2, 0, 1], dtype=torch.int32))
    assert unique.keys.ids.tolist() == [9, 5, 7] and unique.keys.are_unique
    assert unique.keys.tables.tolist() == [2, 1, 1] and unique.keys.counts.tolist() == [1, 2, 1]
    assert unique.inverse_indices.tolist() == [1, 2, 1, 0]
    values = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert deduplicator.reduce(unique, values).tolist() == [[8.0], [5.0], [2.0]]
    assert deduplicator.expand(unique, values[:3]).tolist() == [[2.0], [4.0], [2.0], [1.0]]
    for wrong in ([0, 1], [0, 0, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="in the order"):
            reorder(unique, torch.tensor(wrong, dtype=torch.int32))


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_unique_keys_sorted_by_owner_are_those_of_each_rank_in_turn(num_ranks: int) -> None:
    deduplicator = Deduplicator(ThreadPool(1))
    unique = deduplicator.deduplicate(Keys(torch.arange(40) % 17))
    order, counts = route(unique.keys, num_ranks)
    by_owner, counts_R = deduplicator.sort_by_owner(unique, num_ranks)
    assert counts_R.tolist() == counts.tolist() and len(counts_R) == num_ranks
    assert by_owner.keys.ids.tolist() == reorder(unique, order).keys.ids.tolist()
    assert by_owner.keys.ids[by_owner.inverse_indices].tolist() == (torch.arange(40) % 17).tolist()


def test_old_names_work_for_one_release_and_warn() -> None:
    deduplicator = Deduplicator(ThreadPool(1))
    unique = deduplicator.deduplicate(Keys(torch.tensor([5, 7, 5])))
    values = torch.tensor([[1.0], [2.0]])
    with pytest.warns(DeprecationWarning, match=r"UniqueKeys.numbers is deprecated.*use inverse_indices"):
        assert unique.numbers.tolist() == [0, 1, 0]  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"hand_out\(\) is deprecated.*use expand\(\)"):
        assert deduplicator.hand_out(unique, values).tolist() == [[1.0], [2.0], [1.0]]  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"add_up\(\) is deprecated.*use reduce\(\)"):
        assert deduplicator.add_up(unique, torch.ones(3, 1)).tolist() == [[2.0], [1.0]]  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="Workers is deprecated.*use ThreadPool"):
        assert keys_module.Workers is ThreadPool
    with pytest.warns(DeprecationWarning, match=r"Deduplicator\(workers=\) is deprecated.*use thread_pool="):
        Deduplicator(workers=ThreadPool(1))  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="table_number is deprecated.*use table_id_of"):
        assert keys_module.table_number("item") == keys_module.table_id_of("item")
    with pytest.warns(DeprecationWarning, match="part_of is deprecated.*use select_keys"):
        assert keys_module.part_of is keys_module.select_keys
    with pytest.warns(DeprecationWarning, match="take_as_unique is deprecated.*use from_unique"):
        assert len(keys_module.take_as_unique(Keys(torch.tensor([5, 5])))) == 2
