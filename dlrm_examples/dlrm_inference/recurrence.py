# SPDX-License-Identifier: Apache-2.0
"""Replay of a run as if communication cost nothing: the least time in which listing 2 of the paper can finish.

Idea: measure how long each rank worked between its events, then replay the events with exchanges that take no time. An
exchange is complete as soon as every rank has posted it. With bound k, for rank r and step t:

    posted(r, t)        = time of r's previous event + before_post(r, t)
    completed(r, t - k) = max(posted(r, t) + before_wait(r, t - k), max over all ranks s of posted(s, t - k))

Each step posts t and then waits for t - k; after the last step the rank waits for the k exchanges left.

Example: two ranks, three steps, work before posting [1, 5, 1] and [4, 1, 2], no other work.
    k = 0: posted [1, 9, 10] and [4, 5, 11]; both complete at [4, 9, 11]; 11 in total.
    k = 1: posted [1, 6, 7] and [4, 5, 7]; rank 0 completes at [6, 7, 7], rank 1 at [5, 7, 7]; 7 in total.

Invariants: rank r completes t - k - 1 before it posts t. A rank alone never waits.
Complexity: O(ranks * steps).
Source: Dichev et al., arXiv 2512.19342, listing 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """Time in seconds that one rank spent outside posting and waiting, between its events in program order.

    Attributes:
        start_s: time at which the rank entered the loop, on a clock that all ranks share.
        before_post_s: (steps,) work between the previous event and the posting of each step (delay, lookup, ...).
        before_wait_s: (steps,) work between the previous event and the wait for each step (bottom MLP, ...).
        tail_s: work after the last wait.
    """

    start_s: float
    before_post_s: Seconds
    before_wait_s: Seconds
    tail_s: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Times of the replayed events, on the clock of ``RankWork.start_s``; arrays are (ranks, steps)."""

    posted_s: Seconds
    completed_s: Seconds
    finished_s: Seconds  # (ranks,)
    started_s: float

    @property
    def elapsed_s(self) -> float:
        """Time from the start of the first rank to the end of the last rank."""
        return float(self.finished_s.max() - self.started_s)


def replay(ranks: Sequence[RankWork], *, max_lag: int) -> Replay:
    """Computes when each step of each rank would end if exchanges took no time.

    Args:
        ranks: one entry per rank, all with the same number of steps.
        max_lag: the bound k, at least 0.
    Raises:
        ValueError: ``max_lag`` is negative.
    """
    if max_lag < 0:
        raise ValueError(f"max_lag must be at least 0, not {max_lag}")
    num_steps = len(ranks[0].before_post_s)
    before_post = np.stack([rank.before_post_s for rank in ranks])
    before_wait = np.stack([rank.before_wait_s for rank in ranks])
    now = np.array([rank.start_s for rank in ranks], dtype=np.float64)
    posted = np.zeros((len(ranks), num_steps))
    completed = np.zeros((len(ranks), num_steps))

    def wait(step: int) -> None:
        nonlocal now
        now = np.maximum(now + before_wait[:, step], posted[:, step].max())
        completed[:, step] = now

    for step in range(num_steps):
        now = now + before_post[:, step]
        posted[:, step] = now
        if step >= max_lag:
            wait(step - max_lag)
    for step in range(max(0, num_steps - max_lag), num_steps):
        wait(step)
    now = now + np.array([rank.tail_s for rank in ranks])
    return Replay(posted_s=posted, completed_s=completed, finished_s=now, started_s=min(rank.start_s for rank in ranks))
