# SPDX-License-Identifier: Apache-2.0
"""Waits for the end of processes that this one did not start."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def is_running(pid: int) -> bool:
    """Whether there is such a process. A zombie has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(pids: Iterable[int], *, limit_s: float = 10) -> None:
    """Fails if a process is still there after ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{left} are still there"
        time.sleep(0.05)
