"""The least time in which listing 2 of the paper can run, given what every rank did besides communicating.

Replays the order of events of the loop with exchanges that cost nothing: an exchange is complete as soon as every rank
has posted it. With bound k, rank r posts t after its work of step t, and waits for t - k at the end of step t, so that
t - k - 1 is complete before it posts t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """Time that one rank spent outside of posting and waiting, between its events in program order.

    Attributes:
        start_s: when the rank entered the loop, on a clock that the ranks share.
        before_post_s: (steps,) work between the event before and the posting of each step (delay, lookup, ...).
        before_wait_s: (steps,) work between the event before and the waiting for each step (bottom MLP, ...).
        tail_s: work after the last wait.
    """

    start_s: float
    before_post_s: Seconds
    before_wait_s: Seconds
    tail_s: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Times at which the ranks pass the events, on the clock of ``RankWork.start_s``; arrays are (ranks, steps)."""

    posted_s: Seconds
    completed_s: Seconds
    finished_s: Seconds  # (ranks,)
    started_s: float

    @property
    def elapsed_s(self) -> float:
        """From the first rank's start to the last one's end."""
        return float(self.finished_s.max() - self.started_s)


def replay(ranks: Sequence[RankWork], *, max_lag: int) -> Replay:
    """Runs the recurrence.

    Args:
        ranks: one entry per rank, all with the same number of steps.
        max_lag: the bound k, at least 0.
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
