# SPDX-License-Identifier: Apache-2.0
"""Checks that a host has enough GPUs, and keeps a GPU busy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.errors import BenchmarkError

_CYCLES_PER_MS = 2_000_000  #: Approximate clock rate of data centre GPUs.


def expect_gpu_each(ranks: Sequence[int]) -> None:
    """Checks that each rank can have a GPU, for each number of ranks.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks.
    """
    most, found = max(ranks), torch.cuda.device_count()
    if most > found:
        raise BenchmarkError(f"{most} ranks need a GPU each, and torch finds {found}")


def keep_busy(milliseconds: float) -> None:
    """Occupies the current stream for about this long, so that the host can enqueue the timed work behind it."""
    torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))
