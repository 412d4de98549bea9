# SPDX-License-Identifier: Apache-2.0
"""Processor time that a measurement did not get: other programs used it (foreign load), or the hypervisor (steal).

Idea: read the kernel's counters before and after. The cores were busy for B seconds of T, and the measurement itself
used P of them. Other programs used the rest, B - P. Steal is counted by the kernel separately.

Example: 2 cores, 10 s: T = 20 s. The ranks used P = 9 s, and the cores were busy for B = 15 s: foreign load is
    (15 - 9) / 20 = 30%.

Invariants: only cores that this process may use count. P includes child processes that have ended and were joined.
Complexity: one read of /proc/stat per call.
Source: proc_stat(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

BUSY_SHARE = 0.1
"""Foreign load and steal above this share of the processor time can change which of two systems is faster."""


@dataclass(frozen=True, kw_only=True)
class ProcessorTime:
    """Processor time so far, in seconds over all cores that this process may use.

    Attributes:
        total: all time, idle or not.
        busy: time in which programs ran.
        steal: time in which the hypervisor ran others although a program of this host could run.
        own: time of this process and of its joined children.
    """

    total: float
    busy: float
    steal: float
    own: float


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """Shares of the processor time during a measurement, 0 to 1."""

    foreign: float
    steal: float

    @property
    def is_busy(self) -> bool:
        """True if the host had too little time left for a comparison."""
        return self.foreign + self.steal > BUSY_SHARE


def read_processor_time() -> ProcessorTime:
    """Reads the counters of the kernel."""
    cores = psutil.cpu_times(percpu=True)
    times = [cores[number] for number in os.sched_getaffinity(0)]
    # Guest times are in user and nice.
    busy = sum(each.user + each.nice + each.system + each.irq + each.softirq for each in times)
    steal = sum(each.steal for each in times)
    total = busy + steal + sum(each.idle + each.iowait for each in times)
    return ProcessorTime(total=total, busy=busy, steal=steal, own=sum(os.times()[:4]))


def load_between(before: ProcessorTime, after: ProcessorTime) -> HostLoad | None:
    """Load of the time between two readings; None if no time has passed."""
    if after.total <= before.total:
        return None
    total = after.total - before.total
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return HostLoad(foreign=max(0.0, foreign / total), steal=(after.steal - before.steal) / total)
