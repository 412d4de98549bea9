"""The conditions under which the systems are compared (paper, sections V.E and V.F)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One condition.

    Attributes:
        name: on the command line and in results.
        description: one line for a reader of the report.
        max_delay_s: each rank sleeps a uniform time from 0 to this in every step.
        straggler_delay_s: the last rank sleeps this long in every step.
        max_lookups: ids per row and table are drawn from 1 to this per table and batch; 1 reads the log instead.
        pool_at_receiver: bags are sent row by row and summed by the receiver, so message sizes vary.
    """

    name: str
    description: str
    max_delay_s: float = 0.0
    straggler_delay_s: float = 0.0
    max_lookups: int = 1
    pool_at_receiver: bool = False

    @property
    def reads_log(self) -> bool:
        """Whether the requests come from a log rather than from the random generator."""
        return self.max_lookups == 1

    @property
    def lookups_per_row(self) -> float:
        """Mean number of embedding rows that an owner reads for one row that it sends."""
        return 1.0 if self.pool_at_receiver else (1 + self.max_lookups) / 2


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            name="random_delays",
            description="every rank sleeps 0 to 10 ms, uniformly drawn, in each step",
            max_delay_s=0.010,
        ),
        Setting(
            name="short_delays",
            description="every rank sleeps 0 to 5 ms, uniformly drawn, in each step",
            max_delay_s=0.005,
        ),
        Setting(
            name="heterogeneous",
            description="1 to 100 lookups, drawn per table and batch, summed by the table's owner: uneven work",
            max_lookups=100,
        ),
        Setting(
            name="heterogeneous_messages",
            description="1 to 100 lookups, drawn per table and batch, sent row by row: uneven work and messages",
            max_lookups=100,
            pool_at_receiver=True,
        ),
        Setting(
            name="straggler",
            description="the last rank sleeps 5 ms in each step; lag must not help",
            straggler_delay_s=0.005,
        ),
        Setting(name="balanced", description="nothing slows any rank; lag must not hurt"),
    )
}


def draw_delays(
    setting: Setting, *, rank: int, num_ranks: int, run: int, num_steps: int, seed: int
) -> npt.NDArray[np.float64]:
    """Seconds that ``rank`` sleeps in each step of a run; the same for every system and bound.

    Returns:
        (num_steps,) float64.
    """
    random = np.random.default_rng((seed, run, rank))
    delays = random.uniform(0.0, setting.max_delay_s, num_steps)
    if rank == num_ranks - 1:
        delays += setting.straggler_delay_s
    return delays
