# SPDX-License-Identifier: Apache-2.0
"""Jagged columns (a list of ids per example): joins, hashes, and lists of earlier items."""

from __future__ import annotations

import numpy as np
import pytest

from dlrm_examples.support.data.columns import (
    Events,
    first_of_each,
    hashed,
    joined,
    lists,
    log_bucket,
    recent_items,
    side_by_side,
)
from dlrm_examples.support.data.log import Jagged


def as_lists(column: Jagged) -> list[list[int]]:
    return [part.tolist() for part in column.values.split(column.lengths.tolist())]


@pytest.mark.parametrize("seed", range(4))
def test_recent_items_are_the_last_ones_of_the_user_from_an_earlier_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    # 200 events; the last 50 of them ask for a list.
    events = Events(*(random.integers(0, limit, 200) for limit in (9, 40, 1000)))

    expected = []
    for user, time in zip(events.user_ids[150:], events.times[150:], strict=True):
        past = np.flatnonzero((events.user_ids == user) & (events.times < time))
        past = past[np.argsort(events.times[past], kind="stable")]
        expected.append(events.items[past][-5:].tolist())

    assert as_lists(recent_items(events, max_items=5, num_asked=50)) == expected


def test_events_of_one_moment_do_not_see_each_other() -> None:
    moment = Events(*(np.array(values) for values in ([3, 3, 3, 4], [10, 10, 11, 10], [1, 2, 5, 6])))
    assert as_lists(recent_items(moment, max_items=9, num_asked=4)) == [[], [], [1, 2], []]
    with pytest.raises(ValueError, match="5 events are to get a list, and there are 4"):
        recent_items(moment, max_items=9, num_asked=5)


def test_a_join_gives_each_key_its_list_and_unknown_keys_none() -> None:
    side = lists(np.array([7, 8, 9]), np.array([2, 0, 1]))
    column = joined(side, np.array([50, -3, 20]), np.array([20, 50, 99, -3, 50, -9]))
    assert as_lists(column) == [[9], [7, 8], [], [], [7, 8], []]


def test_a_key_with_two_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="20 has more than one row"):
        joined(lists(np.array([1, 2, 3]), np.array([1, 1, 1])), np.array([20, 5, 20]), np.array([5]))


def test_hashes_differ_by_name_and_value_and_stay_for_ever() -> None:
    ids = hashed("tab", ["a", "b", "a"])
    assert ids[0] == ids[2] != ids[1]
    assert hashed("hour", ["a"])[0] != ids[0]
    assert ids[0] == -8236373299744880315  # Checkpoints contain these ids.


def test_columns_side_by_side_become_lists() -> None:
    assert as_lists(side_by_side([np.array([1, 2]), np.array([3, 4])])) == [[1, 3], [2, 4]]


def test_the_first_row_of_each_combination_stays_in_its_place() -> None:
    assert first_of_each([np.array([2, 1, 2, 2, 1]), np.array([5, 5, 5, 6, 5])]).tolist() == [0, 1, 3]


def test_buckets_widen_by_doubling() -> None:
    assert log_bucket(np.array([-5.0, 0.0, 1.0, 3.0, 1023.0]), per_doubling=2).tolist() == [0, 0, 2, 4, 20]
