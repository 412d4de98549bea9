# SPDX-License-Identifier: Apache-2.0
"""The replay of listing 2 of arXiv 2512.19342, inference with bounded lag, matches times computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dlrm_examples.dlrm_inference.devices import RunTimes
from dlrm_examples.dlrm_inference.recurrence import RankWork, replay


def rank(
    before_post: list[float], before_wait: list[float] | None = None, *, start_s: float = 0.0, tail_s: float = 0.0
) -> RankWork:
    """Work in seconds: of each step before its post, of each step between post and wait, and after the last wait."""
    return RankWork(
        start_s=start_s,
        before_post_s=np.array(before_post, dtype=float),
        before_wait_s=np.zeros(len(before_post)) if before_wait is None else np.array(before_wait, dtype=float),
        tail_s=tail_s,
    )


def test_without_lag_every_step_takes_as_long_as_its_slowest_rank() -> None:
    result = replay([rank([1, 5, 1]), rank([4, 1, 2])], max_lag=0)

    assert result.posted_s.tolist() == [[1, 9, 10], [4, 5, 11]]
    assert result.completed_s.tolist() == [[4, 9, 11], [4, 9, 11]]
    assert result.elapsed_s == 11


def test_a_bound_of_one_hides_delays_that_change_places() -> None:
    # Rank 0 posts 0 at 1 and 1 at 6, then waits for 0, complete at 4. Rank 1 posts 0 at 4, 1 at 5, 2 at 7.
    result = replay([rank([1, 5, 1]), rank([4, 1, 2])], max_lag=1)

    assert result.posted_s.tolist() == [[1, 6, 7], [4, 5, 7]]
    assert result.completed_s.tolist() == [[6, 7, 7], [5, 7, 7]]
    assert result.elapsed_s == 7


def test_the_bound_stops_a_rank_that_is_too_far_ahead() -> None:
    # Rank 1 posts at 10, 20, 30. Rank 0 posts 0 and 1 at once; 0 is complete at 10 only, so it posts 2 at 10.
    result = replay([rank([0, 0, 0]), rank([10, 10, 10])], max_lag=1)

    assert result.posted_s.tolist() == [[0, 0, 10], [10, 20, 30]]
    assert result.completed_s[0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("max_lag", [0, 1, 2, 5])
def test_lag_does_not_help_against_a_straggler(max_lag: int) -> None:
    assert replay([rank([1] * 4), rank([3] * 4)], max_lag=max_lag).elapsed_s == 12


def test_work_between_post_and_wait_overlaps_with_the_exchange() -> None:
    # k = 0. Rank 0: post at 1, bottom MLP until 3. Rank 1: post at 2, until 3. Both complete 0 at 3; top MLP of 1.
    result = replay([rank([1, 1], [2, 0]), rank([2, 1], [1, 0], tail_s=4)], max_lag=0)

    assert result.completed_s.tolist() == [[3, 4], [3, 4]]
    assert result.finished_s.tolist() == [4, 8]


def test_a_late_start_counts_from_the_first_rank() -> None:
    result = replay([rank([1], start_s=100.0), rank([1], start_s=102.0)], max_lag=0)
    assert result.elapsed_s == 3


def test_a_bound_above_the_number_of_steps_waits_only_in_the_drain() -> None:
    result = replay([rank([1, 1]), rank([5, 5])], max_lag=9)
    assert result.posted_s.tolist() == [[1, 2], [5, 10]]
    assert result.completed_s[0].tolist() == [5, 10]


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        replay([rank([1])], max_lag=-1)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_stamps_of_a_run_turn_into_the_work_between_them(max_lag: int) -> None:
    """A rank alone never waits, so its replayed time is its measured time without communication."""
    steps, clock = 3, 0.0
    times = RunTimes(steps)

    def stamp(seconds: float) -> float:
        nonlocal clock
        clock += seconds
        return clock

    for step in range(steps + max_lag):
        if step < steps:
            times.post_began[step], times.post_ended[step] = stamp(1.0), stamp(100.0)
        if step >= max_lag:
            times.wait_began[step - max_lag], times.wait_ended[step - max_lag] = stamp(10.0), stamp(1000.0)
    times.finished = stamp(0.5)

    work = times.work(max_lag=max_lag)

    assert work.before_post_s.tolist() == [1.0] * steps
    assert work.before_wait_s.tolist() == [10.0] * steps
    assert work.tail_s == 0.5
    assert replay([work], max_lag=max_lag).elapsed_s == 3 * 11 + 0.5
    assert times.elapsed_s == 3 * 1111 + 0.5
