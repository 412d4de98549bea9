"""The layer as one step of autograd, which keeps no more than ``config.recompute`` allows.

Shapes: T tokens, E columns of the layer, P of u, v, q and k together, G of the input of the output projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headway.nn.attention import BiasTables, LayerAttention
from headway.nn.config import HSTUConfig
from headway.nn.gates import gate_backward, gate_forward
from headway.nn.norms import Normalized, NormWeights, normalize, normalize_backward


class LayerWeights(NamedTuple):
    """All that a layer has learned; None where its config leaves it out. Matrices are (inputs, outputs)."""

    uvqk_weight: Tensor  # (E, P)
    uvqk_bias: Tensor | None  # (P,)
    output_weight: Tensor  # (G, E)
    output_bias: Tensor | None  # (E,)
    input_norm_weight: Tensor | None  # (E,)
    input_norm_bias: Tensor | None
    output_norm_weight: Tensor | None  # (H V,)
    output_norm_bias: Tensor | None
    position_weights: Tensor | None
    time_weights: Tensor | None

    @property
    def input_norm(self) -> NormWeights:
        return NormWeights(self.input_norm_weight, self.input_norm_bias)

    @property
    def output_norm(self) -> NormWeights:
        return NormWeights(self.output_norm_weight, self.output_norm_bias)


class Projected(NamedTuple):
    """u (T, H V) for the gate; v (T, H, V), q and k (T, H, D) for the attention."""

    u: Tensor
    v: Tensor
    q: Tensor
    k: Tensor


class Activations(NamedTuple):
    """What the backward pass starts from: normed input, projection before and after SiLU, attention output (T, H V)."""

    normed: Normalized
    projected: Tensor
    parts: Projected
    attended: Tensor


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """One pass of a layer over a batch.

    Attributes:
        attention: with the layer's config.
        time_bounds: of its bias.
        dtype: that matrices are multiplied in: that of autocast, or of the input.
    """

    attention: LayerAttention
    time_bounds: Tensor | None
    dtype: torch.dtype

    @property
    def config(self) -> HSTUConfig:
        return self.attention.config

    def tables(self, weights: LayerWeights) -> BiasTables:
        """Of the attention's bias, float32 where products are not float64."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        position, time = weights.position_weights, weights.time_weights
        return BiasTables(
            None if position is None else position.to(wide), None if time is None else time.to(wide), self.time_bounds
        )

    def norm_input(self, x: Tensor, weights: LayerWeights) -> Normalized:
        """(T, E) of the type of ``x``."""
        return normalize(self.config.norm, x, weights.input_norm, self.config.norm_eps)

    def project(self, normed: Tensor, weights: LayerWeights) -> Tensor:
        """(T, P), before SiLU."""
        return _linear(normed.to(self.dtype), weights.uvqk_weight, weights.uvqk_bias)

    def activate(self, projected: Tensor) -> Projected:
        """SiLU of all or of u, split."""
        config = self.config
        widths = list(config.projection_widths)
        if config.activated == "all":
            u, v, q, k = torch.split(functional.silu(projected), widths, dim=1)
        else:
            u, v, q, k = torch.split(projected, widths, dim=1)
            u = functional.silu(u)
        return Projected(u, _by_head(v, config), _by_head(q, config), _by_head(k, config))

    def activate_backward(self, projected: Tensor, grads: Projected) -> Tensor:
        """(T, P)."""
        u, *others = grads
        is_all = self.config.activated == "all"
        if not is_all:
            u = _silu_backward(u, projected[:, : self.config.gate_width])
        grad = torch.cat([u, *(each.flatten(1) for each in others)], dim=1)
        return _silu_backward(grad, projected) if is_all else grad

    def attend(self, parts: Projected, weights: LayerWeights) -> Tensor:
        """(T, H V)."""
        return self.attention.forward(parts.q, parts.k, parts.v, self.tables(weights)).flatten(1)

    def drop(self, gated: Tensor, kept: Tensor | None) -> Tensor:
        """Dropout, in both directions; ``kept`` (T, G) bool, None: all."""
        return gated if kept is None else gated * kept * (1 / (1 - self.config.dropout))

    def output(self, x: Tensor, attended: Tensor, u: Tensor, kept: Tensor | None, weights: LayerWeights) -> Tensor:
        """(T, E) of the type of ``x``."""
        gated = gate_forward(self.config, attended, u, weights.output_norm).out
        return x + _linear(self.drop(gated, kept), weights.output_weight, weights.output_bias).to(x.dtype)

    def forward(self, x: Tensor, kept: Tensor | None, weights: LayerWeights) -> Tensor:
        """The whole layer in steps that autograd sees one by one."""
        parts = self.activate(self.project(self.norm_input(x, weights).out, weights))
        return self.output(x, self.attend(parts, weights), parts.u, kept, weights)


class FusedLayer(torch.autograd.Function):
    """``LayerStep.forward()`` with a backward pass by hand; its gradients have no gradients themselves.

    ``apply(step, x, kept, *weights)`` gives (T, E).
    """

    @staticmethod
    def forward(ctx: Any, step: LayerStep, x: Tensor, kept: Tensor | None, *tensors: Tensor | None) -> Tensor:
        weights = LayerWeights(*tensors)  # type: ignore[arg-type]
        projected = step.project(step.norm_input(x, weights).out, weights)
        parts = step.activate(projected)
        attended = step.attend(parts, weights)
        recompute = step.config.recompute
        ctx.step = step
        ctx.save_for_backward(
            x,
            kept,
            projected if recompute == "norm_and_gate" else None,
            None if recompute == "all" else attended,
            *step.attention.sequences.tensors(),  # So that changes in place are found.
            *tensors,
        )
        return step.output(x, attended, parts.u, kept, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError('second derivatives of an HSTULayer: take recompute="none" and the reference')
        step: LayerStep = ctx.step
        x, kept, projected, attended, *tensors = ctx.saved_tensors
        weights = LayerWeights(*tensors[-len(LayerWeights._fields) :])
        normed = step.norm_input(x, weights)
        if projected is None:
            projected = step.project(normed.out, weights)
        parts = step.activate(projected)
        if attended is None:
            attended = step.attend(parts, weights)
        found = Activations(normed, projected, parts, attended)
        grad_x, grad_weights = _backward(step, grad, x, kept, found, weights)
        return None, grad_x, None, *grad_weights


def _backward(
    step: LayerStep, grad: Tensor, x: Tensor, kept: Tensor | None, found: Activations, weights: LayerWeights
) -> tuple[Tensor, LayerWeights]:
    """Gradients of the input and of the weights, from the output back to the input."""
    config, parts = step.config, found.parts
    gated = gate_forward(config, found.attended, parts.u, weights.output_norm)
    output = _linear_backward(
        grad.to(step.dtype), step.drop(gated.out, kept), weights.output_weight, weights.output_bias
    )
    gate = gate_backward(
        config, step.drop(output.x, kept), found.attended, parts.u, weights.output_norm, gated.normalized
    )
    attention = step.attention.backward(
        _by_head(gate.attended, config), parts.q, parts.k, parts.v, step.tables(weights)
    )
    grad_projected = step.activate_backward(
        found.projected, Projected(gate.gate, attention.v, attention.q, attention.k)
    )
    uvqk = _linear_backward(grad_projected, found.normed.out.to(step.dtype), weights.uvqk_weight, weights.uvqk_bias)
    norm = normalize_backward(config.norm, uvqk.x.to(x.dtype), x, weights.input_norm, found.normed)
    grads = LayerWeights(
        uvqk_weight=uvqk.weight,
        uvqk_bias=uvqk.bias,
        output_weight=output.weight,
        output_bias=output.bias,
        input_norm_weight=norm.weight,
        input_norm_bias=norm.bias,
        output_norm_weight=gate.weight,
        output_norm_bias=gate.bias,
        position_weights=attention.position_weights,
        time_weights=attention.time_weights,
    )
    return grad + norm.x, grads


def _by_head(columns: Tensor, config: HSTUConfig) -> Tensor:
    return columns.view(columns.shape[0], config.num_heads, columns.shape[1] // config.num_heads)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    out: Tensor = torch.ops.aten.silu_backward(grad, x)
    return out


class _LinearGradients(NamedTuple):
    x: Tensor
    weight: Tensor
    bias: Tensor | None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In the type of ``x``."""
    matrix = weight.to(x.dtype)
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias.to(x.dtype), x, matrix)


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> _LinearGradients:
    return _LinearGradients(
        torch.mm(grad, weight.to(grad.dtype).t()),
        torch.mm(x.t(), grad).to(weight.dtype),
        None if bias is None else grad.sum(0).to(bias.dtype),
    )
