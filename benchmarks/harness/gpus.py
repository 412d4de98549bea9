"""The GPUs of a benchmark: whether a host has them, and what keeps one busy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.errors import BenchmarkError

_CYCLES_PER_MS = 2_000_000  #: about what clocks of data centre GPUs make


def expect_gpu_each(ranks: Sequence[int]) -> None:
    """For numbers of ranks that are measured one after the other.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks.
    """
    most, found = max(ranks), torch.cuda.device_count()
    if most > found:
        raise BenchmarkError(f"{most} ranks need a GPU each, and torch finds {found}")


def keep_busy(milliseconds: float) -> None:
    """Gives the current stream about so much to do, while the host enqueues behind it what is timed."""
    torch.cuda._sleep(int(milliseconds * _CYCLES_PER_MS))
