# SPDX-License-Identifier: Apache-2.0
"""SiLU of column blocks in plain PyTorch: the oracle of the kernel.

Idea: one projection of an HSTU layer yields u, v, q and k side by side. This splits its columns and applies SiLU to
chosen parts; the others are copied.

Example: x of (T, 5), widths (2, 3), activated (True, False): silu(x[:, :2]) and a copy of x[:, 2:].

Invariants: SiLU is computed in float32 (float64 for float64) and rounded once to the type of x. Outputs are contiguous.
Complexity: O(T * P).

Shapes: T rows, P columns of all parts together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def silu_split(x: Tensor, widths: Sequence[int], *, activated: Sequence[bool] | None = None) -> list[Tensor]:
    """Oracle of :func:`headway.ops.silu_split`, with the same arguments and result."""
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = torch.split(x, list(widths), dim=1)
    is_activated = [True] * len(parts) if activated is None else activated
    return [
        functional.silu(part.to(wide)).to(x.dtype) if each else part.clone()
        for part, each in zip(parts, is_activated, strict=True)
    ]
