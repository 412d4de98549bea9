"""Norms of rows times a gate in plain PyTorch.

Shapes: T rows, C columns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Norm = Literal["layer", "rms"]
GateForm = Literal["norm_then_gate", "gate_then_norm", "concat", "concat_norm"]


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
    """As :func:`headway.ops.gated_norm`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x_TC = x.to(wide)
    if gate is None:
        return _norm(x_TC, weight, bias, norm, eps).to(x.dtype)
    s_TC = functional.silu(gate.to(wide))
    if form == "gate_then_norm":
        return _norm(x_TC * s_TC, weight, bias, norm, eps).to(x.dtype)
    normed_TC = _norm(x_TC, weight, bias, norm, eps)
    if form == "norm_then_gate":
        return (normed_TC * s_TC).to(x.dtype)
    middle_TC = x_TC if form == "concat" else normed_TC
    return torch.cat([s_TC, middle_TC, normed_TC * s_TC], dim=1).to(x.dtype)


def _norm(z_TC: Tensor, weight: Tensor | None, bias: Tensor | None, norm: Norm, eps: float) -> Tensor:
    if norm == "layer":
        z_TC = z_TC - z_TC.mean(dim=1, keepdim=True)
    normed_TC = z_TC * torch.rsqrt(z_TC.square().mean(dim=1, keepdim=True) + eps)
    if weight is not None:
        normed_TC = normed_TC * weight.to(z_TC.dtype)
    return normed_TC if bias is None else normed_TC + bias.to(z_TC.dtype)
