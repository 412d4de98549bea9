# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows that recur from batch to batch.

On a GPU cuBLAS chooses a kernel for each shape of a product that it has not seen. This takes the host 0.15 to 0.2 ms
(H100, cuBLAS 13), longer than a small product takes the device. Jagged batches have another number of tokens
in each step, so it happens for each product. Rounded up, numbers of rows recur, and the choice is found in the cache
of cuBLAS.

Example: all numbers of tokens from 7,937 to 8,192 become 8,192.

Invariant: fewer than 512 rows are added, and less than a sixteenth, or at most 63.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST, _MOST = 64, 512  #: Smallest and largest multiple to which numbers are rounded up.


def padded_rows(num_rows: int, device: torch.device) -> int:
    """Returns the number of rows to compute instead of ``num_rows``. On CPUs it is the same."""
    if device.type != "cuda":
        return num_rows
    multiple = min(max((1 << num_rows.bit_length()) // 32, _LEAST), _MOST)
    return -(-num_rows // multiple) * multiple


def pad_rows(x: Tensor, num_rows: int) -> Tensor:
    """Appends zeros to ``x``, (rows, ...), up to ``num_rows`` rows."""
    if len(x) == num_rows:
        return x
    return torch.cat([x, x.new_zeros(num_rows - len(x), *x.shape[1:])])
