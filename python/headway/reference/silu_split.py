"""SiLU of rows that are cut by columns, in plain PyTorch.

Shapes: T rows, P columns of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def silu_split(x: Tensor, widths: Sequence[int], *, activated: Sequence[bool] | None = None) -> list[Tensor]:
    """As :func:`headway.ops.silu_split`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    parts = torch.split(x, list(widths), dim=1)
    is_activated = [True] * len(parts) if activated is None else activated
    return [
        functional.silu(part.to(wide)).to(x.dtype) if each else part.clone()
        for part, each in zip(parts, is_activated, strict=True)
    ]
