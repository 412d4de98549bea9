# SPDX-License-Identifier: Apache-2.0
"""One HSTU layer.

Shapes: B sequences, T tokens of all of them, E columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.nn.attention import LayerAttention, ParallelPlan
from headway.nn.config import HSTUConfig
from headway.nn.dropout_keys import keep_mask
from headway.nn.fused_layer import FusedLayer, LayerStep, LayerWeights
from headway.nn.key_value_cache import KeyValueCache
from headway.nn.relative_bias import RelativeBias
from headway.nn.sequences import Sequences


class HSTULayer(nn.Module):
    """Norm, projection to u, v, q and k, attention, gate, output projection, residual (Zhai et al. 2024, section 3.2).

    Elements per token that the forward pass saves for the backward pass, with E columns of the layer,
    P = 2 H (D + V) of u, v, q and k, V' = H V of the attention output (H heads), G = ``config.output_width``:

    ============== ======================= ===================================================
    ``recompute``  saved                   recomputed
    ============== ======================= ===================================================
    none           2 E + 2 P + G           nothing (``activated`` "gate": 2 E + P + V' + G)
    norm_and_gate  E + P + V'              norms, SiLU and gate: no matrix product
    projection     E + V'                  these, and the projection
    all            E                       these, and the attention: the whole forward pass
    ============== ======================= ===================================================

    With "none" the norms save 4 more numbers per token. Dropout saves one byte for each of the G elements. The input,
    E, is the output of the previous layer, so with "all" a stack saves nothing else. Under autocast all saved tensors
    except the input have its dtype, and so have copies of the weights, which are kept too. With "none" and the
    reference attention the whole layer is plain PyTorch: gradients have gradients, and more is saved.
    """

    def __init__(self, config: HSTUConfig, index: int = 0) -> None:
        super().__init__()
        self.config = config
        self.index = index  #: Index in a stack. With ``Sequences.dropout_keys`` each layer has masks of its own.
        self.uvqk_weight = nn.Parameter(torch.empty(config.dim, sum(config.projection_widths)))
        self.output_weight = nn.Parameter(torch.empty(config.output_width, config.dim))
        has_norm_bias = config.affine and config.norm == "layer"
        self._add("uvqk_bias", sum(config.projection_widths), config.projection_bias)
        self._add("output_bias", config.dim, config.output_bias)
        self._add("input_norm_weight", config.dim, config.affine)
        self._add("input_norm_bias", config.dim, has_norm_bias)
        self._add("output_norm_weight", config.gate_width, config.affine)
        self._add("output_norm_bias", config.gate_width, has_norm_bias)
        self.bias = RelativeBias(
            max_length=config.max_length,
            position=config.position_bias,
            num_time_buckets=config.num_time_buckets,
            time_bucket_width=config.time_bucket_width,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new weights, except those of ``bias``, which has a ``reset_parameters()`` of its own."""
        for name, parameter in self.named_parameters(recurse=False):
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.constant_(parameter, 1.0 if name.endswith("norm_weight") else 0.0)

    def forward(self, x: Tensor, sequences: Sequences, *, parallel: ParallelPlan | None = None) -> Tensor:
        """Computes the layer.

        Args:
            x: (T, E).
            sequences: sequences of the tokens.
            parallel: division of the batch among the ranks of a group, which all call the layer. Then ``x`` has the
                rank's own tokens, ``sequences`` are those of all ranks, and gradients of weights are the rank's part
                of a sum. None: this rank has all tokens.

        Returns:
            (T, E) of the dtype of ``x``.

        Raises:
            ValueError: ``x`` or ``sequences`` do not fit the config or each other.
        """
        self._check(x, sequences)
        exchange = None if parallel is None else parallel.exchange_of(self.config, x, sequences)
        step = self._step(x, LayerAttention(config=self.config, sequences=sequences, exchange=exchange))
        if parallel is not None:
            self._check_parallel_dropout(x, sequences)
        kept = self._kept(x, sequences)
        weights = self.weights()
        if step.is_plain:
            weights = weights.cast(step.dtype)
            return step.output(x, step.activations(x, kept, weights, {}).gated, weights)
        out: Tensor = FusedLayer.apply(step, x, kept, *weights)
        return out

    def extend(self, x: Tensor, sequences: Sequences, cache: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        """Computes only new tokens, which follow the cached ones. See :meth:`HSTUStack.extend` for the conditions.

        Args:
            x: (T, E) new tokens.
            sequences: sequences of the new tokens; ``max_length`` counts cached and new tokens together.
            cache: cache of this layer; None: there are no earlier tokens.

        Returns:
            (T, E), and a cache that includes the new tokens.

        Raises:
            ValueError: arguments do not fit the config or each other.
        """
        self._check(x, sequences)
        step = self._step(x, LayerAttention(config=self.config, sequences=sequences))
        weights = self.weights().cast(step.dtype)
        projected = step.project(step.norm_input(x, weights)[0], weights)
        v, q, k = step.split(projected)
        if cache is None:
            # Copy: views would keep the memory of queries and gate alive.
            times = None if sequences.times is None else sequences.times.clone()
            cache = KeyValueCache(_copy_of(k), _copy_of(v), sequences.offsets.clone(), times)
        else:
            cache = cache.extended(k, v, sequences.offsets, sequences.times)
        attention = LayerAttention(
            config=self.config, sequences=sequences, key_offsets=cache.offsets, key_times=cache.times
        )
        attention_out = attention.forward(q, cache.keys, cache.values, step.tables(weights)).flatten(1)
        gated, _ = step.gate(attention_out, projected[:, : self.config.gate_width], weights)
        return step.output(x, step.drop(gated, self._kept(x, sequences)), weights), cache

    def weights(self) -> LayerWeights:
        """Returns all learned tensors of the layer."""
        of_bias = ("position_weights", "time_weights")
        return LayerWeights(*(getattr(self.bias if name in of_bias else self, name) for name in LayerWeights._fields))

    def _add(self, name: str, num_columns: int, is_there: bool) -> None:
        self.register_parameter(name, nn.Parameter(torch.empty(num_columns)) if is_there else None)

    def _step(self, x: Tensor, attention: LayerAttention) -> LayerStep:
        device = x.device.type
        is_autocast = device != "meta" and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_autocast else x.dtype
        return LayerStep(attention=attention, time_bounds=self.bias.time_bounds, dtype=dtype)

    def _kept(self, x: Tensor, sequences: Sequences) -> Tensor | None:
        """Draws the dropout mask of the output projection's input: (T, G) bool, True: keep. None: keep all."""
        dropout = self.config.dropout if self.training else 0.0
        if dropout == 0:
            return None
        if sequences.dropout_keys is not None:
            return keep_mask(sequences.dropout_keys, self.config.output_width, layer=self.index, dropout=dropout)
        shape = (x.shape[0], self.config.output_width)
        return torch.empty(shape, dtype=torch.bool, device=x.device).bernoulli_(1 - dropout)

    def _check_parallel_dropout(self, x: Tensor, sequences: Sequences) -> None:
        if not self.training or self.config.dropout == 0:
            return
        keys = sequences.dropout_keys
        if keys is None:
            raise ValueError("dropout with a parallel plan needs dropout_keys, so that it does not depend on the ranks")
        if keys.shape != x.shape[:1]:
            raise ValueError(f"dropout_keys are {tuple(keys.shape)}, and the rank has {x.shape[0]} tokens of its own")

    def _check(self, x: Tensor, sequences: Sequences) -> None:
        config = self.config
        if x.dim() != 2 or x.shape[1] != config.dim:
            raise ValueError(f"x must be (tokens, {config.dim}), not {tuple(x.shape)}")
        if not 0 <= sequences.max_length <= config.max_length:
            raise ValueError(f"sequences of up to {sequences.max_length} tokens; the layer takes {config.max_length}")
        if config.num_time_buckets > 0 and (sequences.times is None or sequences.query_times is None):
            raise ValueError("a layer with time buckets needs times and query_times of its sequences")
        bounds = self.bias.time_bounds
        if bounds is not None and bounds.device != x.device:
            raise ValueError(
                f"bounds of time buckets are on {bounds.device}, and x on {x.device}: move the layer, from meta by "
                "to_empty() before it loads a state"
            )


def _copy_of(rows: Tensor) -> Tensor:
    return rows.clone(memory_format=torch.contiguous_format)
