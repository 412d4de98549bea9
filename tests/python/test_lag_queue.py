# SPDX-License-Identifier: Apache-2.0
"""LagQueue keeps exchanges in order, and completes only as many of the oldest ones as ``max_lag`` requires.

``max_lag``, also called the bound, is the number of exchanges that may be pending after a push. ``push()`` takes a
started exchange with a payload, and returns the payloads of those that it completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.comm.lag_queue import LagQueue


class RecordedWork:
    """An exchange that records when it is waited for."""

    def __init__(self, number: int, waited: list[int], error: Exception | None = None) -> None:
        self._number = number
        self._waited = waited
        self._error = error

    def wait(self) -> None:
        self._waited.append(self._number)
        if self._error is not None:
            raise self._error


def push_all(queue: LagQueue[int], numbers: range, waited: list[int]) -> list[list[int]]:
    return [queue.push(RecordedWork(number, waited), number) for number in numbers]


@pytest.mark.parametrize("max_lag", [0, 1, 2, 4])
def test_a_push_completes_the_exchange_of_max_lag_steps_before(max_lag: int) -> None:
    waited: list[int] = []
    queue: LagQueue[int] = LagQueue(max_lag=max_lag)

    completed = push_all(queue, range(6), waited)

    assert completed == [[step - max_lag] if step >= max_lag else [] for step in range(6)]
    assert waited == list(range(6 - max_lag))
    assert len(queue) == max_lag


def test_drain_completes_the_rest_in_order_one_at_a_time() -> None:
    waited: list[int] = []
    queue: LagQueue[int] = LagQueue(max_lag=3)
    push_all(queue, range(3), waited)

    drained = queue.drain()

    assert next(drained) == 0
    assert waited == [0]
    assert list(drained) == [1, 2]
    assert len(queue) == 0
    assert list(queue.drain()) == []


def test_a_lower_bound_takes_effect_at_the_next_push() -> None:
    waited: list[int] = []
    queue: LagQueue[int] = LagQueue(max_lag=3)
    push_all(queue, range(3), waited)

    queue.max_lag = 1

    assert waited == []
    assert queue.push(RecordedWork(3, waited), 3) == [0, 1, 2]
    assert list(queue.payloads()) == [3]


def test_a_higher_bound_lets_more_exchanges_pend() -> None:
    waited: list[int] = []
    queue: LagQueue[int] = LagQueue(max_lag=0)
    assert push_all(queue, range(1), waited) == [[0]]

    queue.max_lag = 2

    assert push_all(queue, range(1, 4), waited) == [[], [], [1]]


def test_oldest_is_the_exchange_to_wait_for_next() -> None:
    queue: LagQueue[int] = LagQueue(max_lag=2)
    assert queue.oldest is None
    first, second = RecordedWork(0, []), RecordedWork(1, [])
    queue.push(first, 0)
    queue.push(second, 1)
    assert queue.oldest is first
    assert queue.pop() == 0
    assert queue.oldest is second


def test_an_exchange_that_failed_is_no_longer_pending() -> None:
    waited: list[int] = []
    queue: LagQueue[int] = LagQueue(max_lag=1)
    queue.push(RecordedWork(0, waited, RuntimeError("peer 1 is lost")), 0)

    with pytest.raises(RuntimeError, match="peer 1 is lost"):
        queue.push(RecordedWork(1, waited), 1)

    assert list(queue.drain()) == [1]


@pytest.mark.parametrize("bound", [-1, 1.5, True, "2"])
def test_a_bound_that_is_no_count_is_refused(bound: object) -> None:
    with pytest.raises(ValueError, match="max_lag must be"):
        LagQueue(max_lag=bound)  # type: ignore[arg-type]
    queue: LagQueue[int] = LagQueue(max_lag=0)
    with pytest.raises(ValueError, match="max_lag must be"):
        queue.max_lag = bound  # type: ignore[assignment]


def test_without_a_headway_group_the_bound_must_be_given() -> None:
    with pytest.raises(ValueError, match="needs max_lag"):
        LagQueue()


def test_only_a_headway_group_has_channels() -> None:
    """A channel numbers its exchanges apart from those of other channels."""
    with pytest.raises(ValueError, match="only a headway group has channels"):
        LagQueue(max_lag=1, channel=1)


def test_a_queue_without_a_group_cannot_start_an_exchange() -> None:
    queue: LagQueue[int] = LagQueue(max_lag=1)
    with pytest.raises(ValueError, match="made without a group"):
        queue.all_to_all_single(torch.empty(1), torch.empty(1))


def test_pop_of_an_empty_queue_is_an_error() -> None:
    with pytest.raises(IndexError, match="no pending exchange"):
        LagQueue(max_lag=0).pop()


@pytest.fixture
def headway_group() -> Iterator[Any]:
    """A group of this process alone with max_lag 1, which may be raised to 3 (``max_lag_limit``)."""
    headway = pytest.importorskip("headway", reason="headway cannot be imported")
    if not hasattr(headway, "Options"):
        pytest.skip("headway is not built")
    dist.init_process_group(
        "headway",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        pg_options=headway.Options(max_lag=1, max_lag_limit=3),
    )
    yield dist.group.WORLD
    dist.destroy_process_group()


def exchange(group: Any, value: float) -> tuple[Any, torch.Tensor]:
    received = torch.zeros(4)
    return dist.all_to_all_single(received, torch.full((4,), float(value)), group=group, async_op=True), received


def test_a_headway_group_gives_the_bound(headway_group: Any) -> None:
    queue: LagQueue[torch.Tensor] = LagQueue(headway_group)
    assert queue.max_lag == 1
    assert [len(queue.push(*exchange(headway_group, step))) for step in range(4)] == [0, 1, 1, 1]
    assert [tensor.tolist() for tensor in queue.drain()] == [[3.0] * 4]


def test_the_bound_of_a_headway_group_adapts_up_to_its_limit(headway_group: Any) -> None:
    queue: LagQueue[torch.Tensor] = LagQueue(headway_group)
    queue.max_lag = 3
    completed = [tensor for step in range(5) for tensor in queue.push(*exchange(headway_group, step))]
    assert [tensor[0].item() for tensor in completed] == [0.0, 1.0]
    queue.max_lag = 0
    assert [tensor[0].item() for tensor in queue.push(*exchange(headway_group, 5))] == [2.0, 3.0, 4.0, 5.0]
    with pytest.raises(ValueError, match="max_lag 4 is outside 0 to max_lag_limit 3"):
        queue.max_lag = 4
    with pytest.raises(ValueError, match="outside 0 to max_lag_limit 3"):
        LagQueue(headway_group, max_lag=4)


def test_a_gloo_group_has_no_bound_of_its_own() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="needs max_lag"):
            LagQueue(dist.group.WORLD)
        queue: LagQueue[torch.Tensor] = LagQueue(dist.group.WORLD, max_lag=7)
        assert queue.max_lag == 7
        received = torch.zeros(2)
        queue.push(queue.all_to_all_single(received, torch.ones(2)), received)
        assert [tensor.tolist() for tensor in queue.drain()] == [[1.0, 1.0]]
    finally:
        dist.destroy_process_group()
