# SPDX-License-Identifier: Apache-2.0
"""Norm of rows times a gate, as an operator.

Shapes: T rows, C columns, G columns of the output: C or 3 C.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.ops.library import LIBRARY
from headway.reference.gated_norm import GateForm, Norm


def gated_norm(
    x: Tensor,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Norm = "layer",
    form: GateForm = "norm_then_gate",
    eps: float = 1e-6,
) -> Tensor:
    """LayerNorm or RMSNorm of each row, times SiLU of a gate: the inputs of the projections of an HSTU layer.

    With s = silu(gate), the forms are norm(x) s ("norm_then_gate"), norm(x s) ("gate_then_norm"), and side by side s, x
    and norm(x) s ("concat") or s, norm(x) and norm(x) s ("concat_norm"). Without a gate it is norm(x). Values are
    computed in float32 (float64 for float64) and rounded once. Gradients have the same bits in every call. They have no
    gradients themselves. Autocast does not change dtypes.

    Args:
        x: (T, C) float64, float32, bfloat16 or float16. Rows of ``x`` and ``gate`` may have any row stride, such as in
            a slice of columns. Tensors whose columns are not contiguous are copied.
        gate: (T, C) of the same dtype, before SiLU.
        weight: (C,) of the dtype of ``x``, or float32 if ``x`` has 16 bits; None: 1.
        bias: (C,) of the dtype of ``weight``; None: 0.
        norm: "layer" or "rms".
        form: form of the output.
        eps: added to the variance or mean square.

    Returns:
        (T, G) of the dtype of ``x``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit each other.
    """
    out: Tensor = torch.ops.headway.gated_norm(x, gate, weight, bias, norm, form, eps)[0]
    return out


def _statistics_of(x: Tensor) -> Tensor:
    """Allocates (T, 2) for the mean and 1 / standard deviation of each row."""
    return x.new_empty((x.shape[0], 2), dtype=torch.promote_types(x.dtype, torch.float32))


@torch.library.register_fake("headway::gated_norm", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake(
    x: Tensor, gate: Tensor | None, weight: Tensor | None, bias: Tensor | None, norm: str, form: str, eps: float
) -> tuple[Tensor, Tensor]:
    if x.dim() != 2:
        raise ValueError(f"gated_norm: x must be (rows, columns), not {tuple(x.shape)}")
    for name, each in (("gate", gate), ("weight", weight), ("bias", bias)):
        # torch calls this function if any one of the tensors has no memory, so their devices may differ.
        if each is not None and each.device != x.device:
            raise ValueError(f"gated_norm: {name} is on {each.device}, and x on {x.device}")
    num_parts = 3 if gate is not None and form in ("concat", "concat_norm") else 1
    return x.new_empty((x.shape[0], num_parts * x.shape[1])), _statistics_of(x)


@torch.library.register_fake("headway::gated_norm_backward", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _fake_backward(
    grad_out: Tensor,
    statistics: Tensor,
    residual: Tensor | None,
    x: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    return (
        x.new_empty(x.shape),
        *(x.new_empty(0) if each is None else each.new_empty(each.shape) for each in (gate, weight, bias)),
    )
