# SPDX-License-Identifier: Apache-2.0
"""Each channel of a group has its own ``max_lag``. A LagQueue, a queue of pending exchanges, sets and follows it.

Exchanges of a channel are numbered together. A rank may run at most ``max_lag`` of them ahead of the slowest peer.
"""

from __future__ import annotations

import threading
import time

import headway
import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks, shared_store

NUM_EXCHANGES = 6


def make_group(**options: object) -> dist.ProcessGroup:
    return dist.new_group(backend="headway", pg_options=headway.Options(num_channels=2, max_lag_limit=3, **options))


def max_lags_of(group: dist.ProcessGroup) -> list[int]:
    return [headway.backend_of(group).max_lag(channel) for channel in (0, 1)]


def start(queue: headway.LagQueue[torch.Tensor], step: int) -> tuple[dist.Work, torch.Tensor]:
    received = torch.empty(2)
    return queue.all_to_all_single(received, torch.full((2,), 100.0 * queue.channel + step)), received


def num_posted(group: dist.ProcessGroup, channel: int) -> int:
    records = [record for record in headway.flight_records(group) if record["channel"] == channel]
    return sum(record["state"] != "queued" for record in records)


def run_apart(rank: int, max_lags: list[list[int]]) -> list[list[float]]:
    """Rank 0 runs ahead on both channels; rank 1 starts nothing."""
    group = make_group()
    queues = [
        headway.LagQueue(group, max_lag=max_lag, channel=channel) for channel, max_lag in enumerate(max_lags[rank])
    ]
    assert max_lags_of(group) == max_lags[rank]
    if rank == 1:
        shared_store().wait(["rank 0 is ahead"])
    works = [[start(queue, step) for step in range(NUM_EXCHANGES)] for queue in queues]
    if rank == 0:
        assert [num_posted(group, channel) for channel in (0, 1)] == [max_lag + 1 for max_lag in max_lags[0]]
        shared_store().set("rank 0 is ahead", "")
    results: list[list[float]] = []
    for queue, started in zip(queues, works, strict=True):
        completed = [received for pair in started for received in queue.push(*pair)]
        assert len(queue) == queue.max_lag
        results.append([received.mean().item() for received in [*completed, *queue.drain()]])
    return results


@pytest.mark.parametrize("max_lags", [[[0, 2], [3, 1]], [[3, 1], [0, 2]]], ids=str)
def test_a_rank_runs_ahead_on_each_channel_as_far_as_its_bound(max_lags: list[list[int]]) -> None:
    expected = [[100.0 * channel + step for step in range(NUM_EXCHANGES)] for channel in (0, 1)]
    assert run_ranks(run_apart, 2, max_lags) == [expected, expected]


def follow(queue: headway.LagQueue[torch.Tensor], delays_s: list[float]) -> None:
    for step, delay_s in enumerate(delays_s):
        time.sleep(delay_s)
        queue.push(*start(queue, step))
    for _ in queue.drain():
        pass


def follow_two_channels(rank: int) -> list[int]:
    """Runs a thread per channel. Rank 1 is always late on one channel; each rank is late at random on the other."""
    group = make_group(max_lag="auto")
    queues = [headway.LagQueue(group, channel=channel) for channel in (0, 1)]
    assert [queue.max_lag for queue in queues] == [3, 3], "the limit, until something is known"
    delays_s = [[0.006 * rank] * 96, np.random.default_rng(rank).uniform(0.0, 0.006, 96).tolist()]
    threads = [threading.Thread(target=follow, args=pair) for pair in zip(queues, delays_s, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    max_lags = [queue.max_lag for queue in queues]
    assert max_lags_of(group) == max_lags
    return max_lags


def test_queues_on_channels_of_different_load_follow_each_its_own_channel() -> None:
    for straggler, random in run_ranks(follow_two_channels, 2):
        assert straggler == 0, "lag does not help against a straggler"
        assert random > 0


def change_max_lags(rank: int) -> None:
    group = make_group(max_lag=1)
    backend = headway.backend_of(group)
    headway.set_max_lag(3, group=group, channel=1)
    assert max_lags_of(group) == [1, 3]
    assert headway.LagQueue(group).max_lag == 1
    assert headway.LagQueue(group, channel=1).max_lag == 3
    for wrong in (
        lambda: headway.set_max_lag(0, group=group, channel=2),
        lambda: headway.LagQueue(group, channel=2),
        lambda: headway.LagQueue(group, max_lag=0, channel=2),
        lambda: backend.max_lag(2),
        lambda: backend.recommended_max_lag(2),
    ):
        with pytest.raises(ValueError, match="the group has no channel 2, num_channels is 2"):
            wrong()
    with pytest.raises(ValueError, match="max_lag 4 is outside 0 to max_lag_limit 3"):
        headway.set_max_lag(4, group=group, channel=1)
    with pytest.raises(ValueError, match="max_lag 4 is outside 0 to max_lag_limit 3"):
        headway.LagQueue(group, max_lag=4, channel=1)
    assert max_lags_of(group) == [1, 3]
    headway.set_max_lag(2, group=group)
    assert max_lags_of(group) == [2, 2]
    assert backend.options.max_lag == 1, "what the group began with"


def test_a_bound_is_set_for_one_channel_or_for_all() -> None:
    run_ranks(change_max_lags, 1)
