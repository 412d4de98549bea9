"""Runs and different keys of a list, as operators that wait for no device: as many outputs as inputs, and a count."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.ops.library import LIBRARY


def run_lengths(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs of equal neighbours.

    Args:
        keys: (N,) int64 or int32.

    Returns:
        (N,) the key of each run, followed by zeros; (N,) int64, the length of each run, followed by zeros; (N,) int64,
        the run that each entry is in; (1,) int64, the number of runs.

    Raises:
        ValueError: ``keys`` have another type or shape.
    """
    values, lengths, run_of, num_runs = torch.ops.headway.run_lengths(keys)
    return values, lengths, run_of, num_runs


def unique_with_counts(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Different keys in ascending order.

    Args:
        keys: (N,) int64 or int32.

    Returns:
        (N,) different keys, followed by zeros; (N,) int64, the place of each entry's key among them; (N,) int64, how
        often each is there, followed by zeros; (1,) int64, the number of different keys.

    Raises:
        ValueError: ``keys`` have another type or shape.
    """
    values, inverse, counts, num_unique = torch.ops.headway.unique_with_counts(keys)
    return values, inverse, counts, num_unique


def _fake(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def counts(size: int) -> Tensor:
        return keys.new_empty(size, dtype=torch.int64)

    return keys.new_empty(keys.shape), counts(keys.shape[0]), counts(keys.shape[0]), counts(1)


for _name in ("run_lengths", "unique_with_counts"):
    torch.library.register_fake(f"headway::{_name}", _fake, lib=LIBRARY)
