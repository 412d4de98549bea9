"""Whether a host has the GPUs that a benchmark asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.harness.errors import BenchmarkError


def expect_gpu_each(ranks: Sequence[int]) -> None:
    """For numbers of ranks that are measured one after the other.

    Raises:
        BenchmarkError: there are fewer GPUs than ranks.
    """
    most, found = max(ranks), torch.cuda.device_count()
    if most > found:
        raise BenchmarkError(f"{most} ranks need a GPU each, and torch finds {found}")
