# SPDX-License-Identifier: Apache-2.0
"""Splits rows by columns and applies SiLU, as an operator.

Shapes: T rows, P columns of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.ops.library import LIBRARY


def silu_split(x: Tensor, widths: Sequence[int], *, activated: Sequence[bool] | None = None) -> list[Tensor]:
    """Splits ``x`` by columns and applies SiLU to each part, such as u, v, q and k of an HSTU layer's projection.

    Values are computed in float32 (float64 for float64) and rounded once. The backward pass concatenates the gradients
    of all parts in one pass. They have no gradients themselves. Autocast does not change dtypes.

    Args:
        x: (T, P) float64, float32, bfloat16 or float16. Rows may have any row stride; other strides are copied.
        widths: columns of each part, up to 8 parts; the sum is P.
        activated: for each part, apply SiLU or only copy. None: SiLU for all.

    Returns:
        (T, width) for each part, contiguous.

    Raises:
        ValueError: widths do not add up to P, there are too many, or ``activated`` has another number of entries.
    """
    outs: list[Tensor] = torch.ops.headway.silu_split(
        x, list(widths), [True] * len(widths) if activated is None else list(activated)
    )
    return outs


@torch.library.register_fake("headway::silu_split", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(x: Tensor, widths: list[int], activated: list[bool]) -> list[Tensor]:
    return [x.new_empty((x.shape[0], width)) for width in widths]


@torch.library.register_fake("headway::silu_split_backward", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake_backward(grads: list[Tensor], x: Tensor, activated: list[bool]) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
