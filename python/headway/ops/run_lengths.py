# SPDX-License-Identifier: Apache-2.0
"""Run lengths and unique keys, as operators that do not wait for the device.

The outputs have the size of the input, N, whatever the number of runs or unique keys; a tensor (1,) has that number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.ops.library import LIBRARY


def run_lengths(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finds runs of equal neighbours.

    Args:
        keys: (N,) int64 or int32.

    Returns:
        the key of each run, (N,), padded with zeros; the length of each run, (N,) int64, padded with zeros; the index
        of each element's run, (N,) int64; the number of runs, (1,) int64.

    Raises:
        ValueError: ``keys`` have another dtype or shape.
    """
    values, lengths, run_of, num_runs = torch.ops.headway.run_lengths(keys)
    return values, lengths, run_of, num_runs


def unique_with_counts(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finds the unique keys, in ascending order.

    Args:
        keys: (N,) int64 or int32.

    Returns:
        the unique keys, (N,), padded with zeros; the inverse indices, (N,) int64; the count of each unique key, (N,)
        int64, padded with zeros; the number of unique keys, (1,) int64.

    Raises:
        ValueError: ``keys`` have another dtype or shape.
    """
    values, inverse, counts, num_unique = torch.ops.headway.unique_with_counts(keys)
    return values, inverse, counts, num_unique


def _fake(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def counts(size: int) -> Tensor:
        return keys.new_empty(size, dtype=torch.int64)

    return keys.new_empty(keys.shape), counts(keys.shape[0]), counts(keys.shape[0]), counts(1)


for _name in ("run_lengths", "unique_with_counts"):
    torch.library.register_fake(f"headway::{_name}", _fake, lib=LIBRARY)
