# SPDX-License-Identifier: Apache-2.0
"""An HSTU layer as one autograd function with a handwritten backward pass and selective activation recomputation.

Idea: autograd would save the activations of every operation. Here the forward pass saves only those in
``_KEPT[config.recompute]``, and the backward pass recomputes the others from them, in the order of the forward pass.

Example: "norm_and_gate" saves the input (T, E), the projection (T, P) and the attention output (T, H V). The backward
pass recomputes the norm of the input, SiLU and the gate, but no matrix product and no attention.

Invariants: all levels of ``recompute`` give the same gradients. The dropout mask is drawn before the step and saved.
The backward pass uses the dtypes of the forward pass, even if autocast has changed. Gradients have no gradients.
Complexity: :class:`headway.nn.HSTULayer` has the table of saved elements per token.
Source: the layer is that of Zhai et al. 2024, section 3.2.

Shapes: T tokens, E columns of the layer, P columns of u, v, q and k together, G columns of the input of the output
projection, H heads, D columns of queries and keys, V columns of values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway import ops, reference
from headway.nn.attention import BiasTables, LayerAttention
from headway.nn.config import HSTUConfig, Recompute


class NormWeights(NamedTuple):
    """Learned factor and bias of columns, (C,) each; None if the norm has none."""

    weight: Tensor | None
    bias: Tensor | None


class LayerWeights(NamedTuple):
    """All learned tensors of a layer; None if its config leaves it out. Matrices are (inputs, outputs)."""

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

    def cast(self, dtype: torch.dtype) -> LayerWeights:
        """Returns the weights with those of matrix products in ``dtype``."""
        return self._replace(
            uvqk_weight=self.uvqk_weight.to(dtype),
            uvqk_bias=None if self.uvqk_bias is None else self.uvqk_bias.to(dtype),
            output_weight=self.output_weight.to(dtype),
            output_bias=None if self.output_bias is None else self.output_bias.to(dtype),
        )


class Activations(NamedTuple):
    """Activations that the backward pass needs. Statistics of norms are (T, 2)."""

    normed: Tensor  # (T, E)
    normed_statistics: Tensor | None
    projected: Tensor  # (T, P) before SiLU
    v: Tensor  # (T, H, V); with ranks that share the batch what this rank attends with.
    q: Tensor  # (T, H, D)
    k: Tensor
    attention_out: Tensor  # (T, H V)
    gated: Tensor  # (T, G) after dropout
    gated_statistics: Tensor | None


#: Activations that the forward pass saves, by level of recomputation.
_KEPT: dict[Recompute, tuple[str, ...]] = {
    "none": Activations._fields,
    "norm_and_gate": ("projected", "attention_out"),
    "projection": ("attention_out",),
    "all": (),
}


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """One pass of a layer over a batch.

    Attributes:
        attention: attention of the layer, with the layer's config.
        time_bounds: bounds of the time buckets of its bias; None: no time bias.
        dtype: dtype of matrix products: that of autocast, else of the input.
    """

    attention: LayerAttention
    time_bounds: Tensor | None
    dtype: torch.dtype

    @property
    def config(self) -> HSTUConfig:
        return self.attention.config

    @property
    def is_plain(self) -> bool:
        """Does the layer consist of plain PyTorch operations? Then its gradients have gradients."""
        return self.config.attention == "reference" and self.config.recompute == "none"

    def tables(self, weights: LayerWeights) -> BiasTables:
        """Returns the tables of the attention's bias: float64 if ``dtype`` is, else float32."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        position, time = weights.position_weights, weights.time_weights
        return BiasTables(
            None if position is None else position.to(wide), None if time is None else time.to(wide), self.time_bounds
        )

    def norm_input(self, x: Tensor, weights: LayerWeights) -> tuple[Tensor, Tensor | None]:
        """Normalises the input. Returns (T, E) and the statistics of the norm."""
        normed, statistics = self._norm(x, None, weights.input_norm)
        return normed.to(self.dtype), statistics

    def project(self, normed: Tensor, weights: LayerWeights) -> Tensor:
        """Projects to u, v, q and k: (T, P) before SiLU."""
        return _linear(normed, weights.uvqk_weight, weights.uvqk_bias)

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns v, q and k by head, after SiLU if they go through it. SiLU of u is part of ``gate()``."""
        config = self.config
        columns, widths = projected[:, config.gate_width :], config.projection_widths[1:]
        if config.activated == "gate":
            parts = columns.split_with_sizes(list(widths), dim=1)
        else:
            parts = (reference if self.is_plain else ops).silu_split(columns, widths)
        v, q, k = (_by_head(each, config) for each in parts)
        return v, q, k

    def attention_inputs(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns v, q and k that the rank attends with: those of its own tokens, or what ranks exchange for them."""
        v, q, k = self.split(projected)
        q, k, v = self.attention.inputs(q, k, v)
        return v, q, k

    def split_backward(self, projected: Tensor, grads: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Backward pass of ``split()``.

        Args:
            projected: (T, P) before SiLU.
            grads: gradients of u (before SiLU), v, q and k.
        Returns:
            the gradient of ``projected``, (T, P), and the sums of its columns, (P,).
        """
        through_silu = [False, *[self.config.activated == "all"] * 3]
        grad, sums = torch.ops.headway.silu_split_backward([each.flatten(1) for each in grads], projected, through_silu)
        return grad, sums

    def attend(self, v: Tensor, q: Tensor, k: Tensor, weights: LayerWeights) -> Tensor:
        """Computes the attention output, (T, H V)."""
        return self.attention.forward(q, k, v, self.tables(weights)).flatten(1)

    def gate(self, attention_out: Tensor, u: Tensor, weights: LayerWeights) -> tuple[Tensor, Tensor | None]:
        """Applies norm and gate to the attention output. ``u`` is before SiLU. Returns (T, G) and norm statistics."""
        return self._norm(attention_out, u, weights.output_norm)

    def drop(self, gated: Tensor, kept: Tensor | None) -> Tensor:
        """Applies dropout, forward or backward. ``kept``: (T, G) bool; None: keep all."""
        return gated if kept is None else gated * kept * (1 / (1 - self.config.dropout))

    def output(self, x: Tensor, gated: Tensor, weights: LayerWeights) -> Tensor:
        """Applies the output projection to ``gated`` (after dropout) and adds ``x``: (T, E) of the dtype of ``x``."""
        return x + _linear(gated, weights.output_weight, weights.output_bias).to(x.dtype)

    def activations(
        self, x: Tensor, kept: Tensor | None, weights: LayerWeights, known: Mapping[str, Tensor]
    ) -> Activations:
        """Returns all activations. Computes those that are not in ``known``."""
        found: dict[str, Any] = dict(known)
        if "normed" not in found:
            found["normed"], found["normed_statistics"] = self.norm_input(x, weights)
        if "projected" not in found:
            found["projected"] = self.project(found["normed"], weights)
        u = found["projected"][:, : self.config.gate_width]
        if "v" not in found:
            found["v"], found["q"], found["k"] = self.attention_inputs(found["projected"])
        if "attention_out" not in found:
            found["attention_out"] = self.attend(found["v"], found["q"], found["k"], weights)
        if "gated" not in found:
            gated, found["gated_statistics"] = self.gate(found["attention_out"], u, weights)
            found["gated"] = self.drop(gated, kept)
        return Activations(**found)

    def norm_backward(
        self,
        grad: Tensor,
        statistics: Tensor,
        x: Tensor,
        gate: Tensor | None,
        weights: NormWeights,
        *,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, NormWeights]:
        """Backward pass of norm and gate.

        Returns:
            the gradient of ``x`` (plus ``residual``), of the gate, and of the norm's weights.
        """
        of_x, of_gate, *of_weights = torch.ops.headway.gated_norm_backward(
            grad, statistics, residual, x, gate, *self._norm_arguments(x, weights)
        )
        found = (None if each is None else grad.to(each.dtype) for each, grad in zip(weights, of_weights, strict=True))
        return of_x, of_gate, NormWeights(*found)

    def _norm(self, x: Tensor, gate: Tensor | None, weights: NormWeights) -> tuple[Tensor, Tensor | None]:
        weight, bias, norm, form, eps = self._norm_arguments(x, weights)
        if self.is_plain:
            return reference.gated_norm(x, gate, weight=weight, bias=bias, norm=norm, form=form, eps=eps), None
        out, statistics = torch.ops.headway.gated_norm(x, gate, weight, bias, norm, form, eps)
        return out, statistics

    def _norm_arguments(self, x: Tensor, weights: NormWeights) -> tuple[Any, ...]:
        wide = torch.promote_types(x.dtype, torch.float32)
        fitting = (each if each is None or each.dtype == x.dtype else each.to(wide) for each in weights)
        return (*fitting, self.config.norm, self.config.gate, self.config.norm_eps)


class FusedLayer(torch.autograd.Function):
    """A layer with a handwritten backward pass. Its gradients have no gradients.

    ``apply(step, x, kept, *weights)`` returns (T, E).
    """

    @staticmethod
    def forward(ctx: Any, step: LayerStep, x: Tensor, kept: Tensor | None, *tensors: Tensor | None) -> Tensor:
        weights = LayerWeights(*tensors).cast(step.dtype)  # type: ignore[arg-type]
        found = step.activations(x, kept, weights, {})
        ctx.step, ctx.cast = step, weights
        ctx.save_for_backward(
            x,
            kept,
            *(getattr(found, name) for name in _KEPT[step.config.recompute]),
            *step.attention.sequences.tensors(),  # Saved so that autograd detects changes in place.
            step.time_bounds,
            *tensors,
        )
        return step.output(x, found.gated, weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError('second derivatives of an HSTULayer: take recompute="none" and the reference')
        step: LayerStep = ctx.step
        x, kept, *tensors = ctx.saved_tensors
        learned = LayerWeights(*tensors[-len(LayerWeights._fields) :])
        known = dict(zip(_KEPT[step.config.recompute], tensors, strict=False))
        # Keep the dtypes of the forward pass, even if autocast is on now.
        with torch.autocast(x.device.type, enabled=False):
            found = step.activations(x, kept, ctx.cast, known)
            grad_x, grad_weights = _backward(step, grad, x, kept, found, ctx.cast)
        grads = (
            of_weight if weight is None or of_weight is None else of_weight.to(weight.dtype)
            for weight, of_weight in zip(learned, grad_weights, strict=True)
        )
        return None, grad_x, None, *grads


def _backward(
    step: LayerStep, grad: Tensor, x: Tensor, kept: Tensor | None, found: Activations, weights: LayerWeights
) -> tuple[Tensor, LayerWeights]:
    """Computes the gradients of input and weights, from the output back to the input."""
    u = found.projected[:, : step.config.gate_width]
    assert found.normed_statistics is not None and found.gated_statistics is not None, "the layer is not plain"
    grad_output = grad.to(step.dtype)
    grad_gated, grad_output_weight = _linear_backward(grad_output, found.gated, weights.output_weight)
    grad_attended, grad_u, output_norm = step.norm_backward(
        step.drop(grad_gated, kept), found.gated_statistics, found.attention_out, u, weights.output_norm
    )
    attention = step.attention.backward(
        _by_head(grad_attended, step.config), found.q, found.k, found.v, step.tables(weights)
    )
    grad_projected, grad_uvqk_bias = step.split_backward(
        found.projected, (grad_u, attention.v, attention.q, attention.k)
    )
    grad_normed, grad_uvqk_weight = _linear_backward(grad_projected, found.normed, weights.uvqk_weight)
    grad_x, _, input_norm = step.norm_backward(
        grad_normed.to(x.dtype), found.normed_statistics, x, None, weights.input_norm, residual=grad
    )
    return grad_x, LayerWeights(
        uvqk_weight=grad_uvqk_weight,
        uvqk_bias=None if weights.uvqk_bias is None else grad_uvqk_bias,
        output_weight=grad_output_weight,
        output_bias=None if weights.output_bias is None else grad_output.sum(0),
        input_norm_weight=input_norm.weight,
        input_norm_bias=input_norm.bias,
        output_norm_weight=output_norm.weight,
        output_norm_bias=output_norm.bias,
        position_weights=attention.position_weights,
        time_weights=attention.time_weights,
    )


def _by_head(columns: Tensor, config: HSTUConfig) -> Tensor:
    """Views (T, H C) as (T, H, C)."""
    return columns.view(columns.shape[0], config.num_heads, columns.shape[1] // config.num_heads)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes ``x @ weight + bias``."""
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of ``x`` and ``weight``; on GPUs that of the weight is not rounded to 16 bits."""
    grad_x = torch.mm(grad, weight.t())
    if grad.is_cuda and grad.dtype in (torch.bfloat16, torch.float16):
        return grad_x, torch.mm(x.t(), grad, out_dtype=torch.float32)
    return grad_x, torch.mm(x.t(), grad)
