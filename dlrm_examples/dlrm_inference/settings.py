# SPDX-License-Identifier: Apache-2.0
"""Settings: the conditions under which systems are compared (arXiv 2512.19342, sections V.E and V.F).

The owner of a table is the rank that stores it. It looks up the rows for the mini-batches of all ranks and sends them.
With bound k (``max_lag``), a rank that is ahead goes on for up to k steps before it waits for the slowest. Systems run
with several bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: name on the command line and in results.
        description: one line for the report.
        max_delay_s: in every step each rank sleeps for a uniformly drawn time between 0 and this.
        straggler_delay_s: in every step the last rank also sleeps for this time.
        max_lookups: number of ids per row and table, drawn from 1 to this per table and batch; 1: one id, from the log.
        pool_at_receiver: the owner sends all rows of a bag and the receiver sums them, so message sizes vary.
    """

    name: str
    description: str
    max_delay_s: float = 0.0
    straggler_delay_s: float = 0.0
    max_lookups: int = 1
    pool_at_receiver: bool = False

    @property
    def reads_log(self) -> bool:
        """True if the requests come from a log, False if they are random."""
        return self.max_lookups == 1

    @property
    def lookups_per_row(self) -> float:
        """Mean number of embedding rows that an owner reads per row sent."""
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
    """Draws the seconds that ``rank`` sleeps in each step of a run; equal for all systems and bounds.

    Returns:
        (num_steps,) float64.
    """
    random = np.random.default_rng((seed, run, rank))
    delays = random.uniform(0.0, setting.max_delay_s, num_steps)
    if rank == num_ranks - 1:
        delays += setting.straggler_delay_s
    return delays
