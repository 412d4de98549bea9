# SPDX-License-Identifier: Apache-2.0
"""The attention of a layer, forward and backward, computed by the operator or by the reference.

With context parallelism an ``AttentionExchange`` stands between a rank's tokens and what the rank attends with.

Shapes: B sequences, TQ queries and TK keys of all sequences, H heads, D columns of queries and keys, V of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

import headway.ops  # noqa: F401 - registers the operators
from headway.nn.config import HSTUConfig
from headway.nn.sequences import Sequences
from headway.reference.hstu_attention import hstu_attention as reference_attention


class BiasTables(NamedTuple):
    """The tensors of a :class:`headway.nn.RelativeBias`; None if the layer has no such table.

    ``time_bounds`` are the ends of the buckets of time differences. They are not learned.
    """

    position_weights: Tensor | None
    time_weights: Tensor | None
    time_bounds: Tensor | None


class AttentionGradients(NamedTuple):
    """Gradients of queries, keys, values and bias tables; None if the layer has no such table."""

    q: Tensor
    k: Tensor
    v: Tensor
    position_weights: Tensor | None
    time_weights: Tensor | None


class AttentionExchange(Protocol):
    """Exchanges of one layer's attention among ranks that share a batch. All functions have gradients."""

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what the rank attends with, for queries, keys and values of its own tokens, (t, H, columns)."""
        ...

    def inputs_backward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the gradients of the rank's own tokens for those of ``inputs()``."""
        ...

    def output(self, out: Tensor) -> Tensor:
        """Returns the attention output of the rank's own tokens, (t, H, V), for what the rank computed."""
        ...

    def output_backward(self, grad: Tensor) -> Tensor:
        """Returns the gradient of what the rank computed for that of its own tokens."""
        ...


class ParallelPlan(Protocol):
    """Division of a batch among ranks, such as ``headway.parallel.context_parallel.ContextPlan``."""

    def exchange_of(self, config: HSTUConfig, x: Tensor, sequences: Sequences) -> AttentionExchange:
        """Returns the exchanges of a layer. Checks ``x``, the rank's own tokens, and ``sequences``, of all ranks.

        Raises:
            ValueError: they are not of this plan.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """Arguments of a layer's attention other than queries, keys, values and bias tables.

    Attributes:
        config: config of the layer.
        sequences: sequences of the queries.
        key_offsets, key_times: offsets (B + 1,) and times (TK,) of the keys, if they include cached tokens; None: keys
            and queries are of the same tokens.
        exchange: exchanges with the ranks that share the batch; None: this rank has all tokens.
    """

    config: HSTUConfig
    sequences: Sequences
    key_offsets: Tensor | None = None
    key_times: Tensor | None = None
    exchange: AttentionExchange | None = None

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what ``forward()`` and ``backward()`` take, for queries, keys and values of the rank's own tokens."""
        return (q, k, v) if self.exchange is None else self.exchange.inputs(q, k, v)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, tables: BiasTables) -> Tensor:
        """Returns the attention output, (TQ, H, V); with an exchange that of the rank's own tokens."""
        out = self._attend(q, k, v, tables)
        return out if self.exchange is None else self.exchange.output(out)

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: BiasTables) -> AttentionGradients:
        """Returns the gradients of the arguments of ``inputs()`` for the gradient of the output, (TQ, H, V).

        With an exchange, gradients of bias tables are the rank's part of a sum over all ranks.
        """
        if self.exchange is None:
            return self._attend_backward(grad, q, k, v, tables)
        grads = self._attend_backward(self.exchange.output_backward(grad), q, k, v, tables)
        q, k, v = self.exchange.inputs_backward(grads.q, grads.k, grads.v)
        return grads._replace(q=q, k=k, v=v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, tables: BiasTables) -> Tensor:
        if self.config.attention == "reference":
            return reference_attention(q, k, v, **self._named(tables))
        out: Tensor = torch.ops.headway.hstu_attention(q, k, v, **self._of_operator(tables))
        return out

    def _attend_backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: BiasTables) -> AttentionGradients:
        if self.config.attention == "reference":
            return self._reference_backward(grad, q, k, v, tables)
        grads = torch.ops.headway.hstu_attention_backward(grad, q, k, v, **self._of_operator(tables))
        return AttentionGradients(
            grads[0],
            grads[1],
            grads[2],
            None if tables.position_weights is None else grads[3],
            None if tables.time_weights is None else grads[4],
        )

    def _reference_backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, tables: BiasTables
    ) -> AttentionGradients:
        q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
        learned = {
            name: table.detach().requires_grad_()
            for name, table in (("position_weights", tables.position_weights), ("time_weights", tables.time_weights))
            if table is not None
        }
        with torch.enable_grad():
            out = reference_attention(q, k, v, **self._named(tables._replace(**learned)))
        inputs = (q, k, v, *learned.values())
        grads = torch.autograd.grad(out, inputs, grad, allow_unused=True, materialize_grads=True)
        of_tables = dict(zip(learned, grads[3:], strict=True))
        return AttentionGradients(
            grads[0], grads[1], grads[2], of_tables.get("position_weights"), of_tables.get("time_weights")
        )

    def _of_operator(self, tables: BiasTables) -> dict[str, Any]:
        """Arguments as the operators take them: offsets of keys are always given, and ``length_scaling`` is apart."""
        named = self._named(tables)
        is_number = not isinstance(named["scale"], str)
        return named | {
            "key_offsets": self.sequences.offsets if named["key_offsets"] is None else named["key_offsets"],
            "scale": named["scale"] if is_number else 1.0,
            "length_scaling": "none" if is_number else named["scale"],
            "deterministic": self.config.deterministic,
        }

    @property
    def _scale(self) -> float | str:
        """``scale`` of the reference. Its "max_length" is the longest sequence of the batch, not that of the config."""
        scale = self.config.scale
        if scale == "max_length":
            return 1 / self.config.max_length
        return "max_length" if scale == "batch_length" else scale

    def _named(self, tables: BiasTables) -> dict[str, Any]:
        config, sequences = self.config, self.sequences
        has_time = tables.time_weights is not None
        return {
            "offsets": sequences.offsets,
            "max_length": sequences.max_length,
            "key_offsets": sequences.key_offsets if self.key_offsets is None else self.key_offsets,
            "alpha": config.alpha,
            "scale": self._scale,
            "causal": config.causal,
            "num_contextual": sequences.num_contextual,
            "num_targets": sequences.num_targets,
            "window": config.window,
            "full_attention_tail": config.full_attention_tail,
            **tables._asdict(),
            "query_times": sequences.query_times if has_time else None,
            "key_times": (sequences.times if self.key_times is None else self.key_times) if has_time else None,
            "query_runs": sequences.query_runs,
        }
