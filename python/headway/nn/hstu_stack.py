# SPDX-License-Identifier: Apache-2.0
"""A stack of HSTU layers, with incremental inference over a key-value cache.

Idea: ``forward()`` applies the layers and a final norm. For inference ``extend()`` computes new tokens only: each layer
keeps keys and values of earlier tokens in a cache, and new queries attend to cached and new keys.

Example: score 2 candidates after a history of 100 tokens.
  ``_, caches = stack.extend(x_history, history)`` computes 100 tokens once.
  ``y, _ = stack.extend(x_candidates, candidates, caches)`` computes 2 tokens. ``caches`` serve any number of requests.

Invariants: ``extend()`` returns what ``forward()`` would return for the new tokens, as long as new tokens change
nothing for cached ones. ``extend()`` rejects masks and scales where they would. A cache is never changed in place.
Complexity: n new tokens after m cached ones cost n projections and n (n + m) attention pairs at most, instead of m + n
and (m + n)^2. A cache holds H (D + V) elements per token and layer.
Source: the layer is that of Zhai et al. 2024, section 3.2.

Shapes: B sequences, T tokens of all sequences, E columns, H heads, D columns of queries and keys, V columns of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import ops, reference
from headway.nn.attention import ParallelPlan
from headway.nn.config import HSTUStackConfig
from headway.nn.hstu_layer import HSTULayer
from headway.nn.key_value_cache import KeyValueCache
from headway.nn.sequences import Sequences


class HSTUStack(nn.Module):
    """Layers of one config, and a final norm. :func:`headway.nn.renamed_state` converts checkpoints of the authors."""

    def __init__(self, config: HSTUStackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(HSTULayer(config.layer, index) for index in range(config.num_layers))

    def forward(self, x: Tensor, sequences: Sequences, *, parallel: ParallelPlan | None = None) -> Tensor:
        """Computes all layers and the final norm: (T, E) for x (T, E).

        ``parallel`` divides the batch among ranks; see :meth:`HSTULayer.forward`.

        Raises:
            ValueError: ``x`` or ``sequences`` do not fit the config or each other.
        """
        for layer in self.layers:
            x = layer(x, sequences, parallel=parallel)
        return self._final_norm(x)

    def extend(
        self, x: Tensor, sequences: Sequences, caches: Sequence[KeyValueCache] | None = None
    ) -> tuple[Tensor, list[KeyValueCache]]:
        """Computes new tokens only, for inference. The result equals that of ``forward()`` over cached and new tokens.

        The results are equal if new tokens change nothing for cached ones. The mask must be causal, and ``scale`` must
        not depend on lengths. With contextual tokens or ``full_attention_tail`` the new tokens must be targets. With
        time buckets, cached tokens must have asked at a time that stays (:func:`headway.nn.next_times` with ``last``).
        Do not pass a cache on that contains targets: later tokens must not see them.

        Args:
            x: (T, E) new tokens.
            sequences: sequences of the new tokens. ``max_length`` counts cached and new tokens together;
                ``num_contextual`` counts contextual tokens among the cached ones.
            caches: cache of each layer; None: there are no earlier tokens.

        Returns:
            (T, E), and caches that include the new tokens.

        Raises:
            ValueError: arguments do not fit the config or each other, or cached tokens would change.
        """
        if caches is not None:
            self._check_cached_stay(sequences)
        if caches is not None and len(caches) != len(self.layers):
            raise ValueError(f"{len(caches)} caches for {len(self.layers)} layers")
        extended = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, HSTULayer)
            x, cache = layer.extend(x, sequences, None if caches is None else caches[i])
            extended.append(cache)
        return self._final_norm(x), extended

    def _check_cached_stay(self, sequences: Sequences) -> None:
        """Raises ValueError if new tokens would change the outputs of cached tokens."""
        config = self.config.layer
        if not config.causal or config.scale in ("batch_length", "length"):
            raise ValueError(f"causal={config.causal}, scale={config.scale!r}: new tokens change cached ones")
        if config.full_attention_tail == 0 and sequences.num_contextual is None:
            return
        targets = sequences.num_targets
        if targets is None or not torch.equal(targets.long(), sequences.offsets.diff()):
            raise ValueError("with contextual tokens or full_attention_tail, new tokens behind a cache must be targets")

    def _final_norm(self, x: Tensor) -> Tensor:
        kind, eps = self.config.final_norm, self.config.layer.norm_eps
        if kind is None:
            return x
        if kind == "l2":
            return functional.normalize(x, dim=1, eps=eps)
        norm = (reference if self.config.layer.attention == "reference" else ops).gated_norm
        out: Tensor = norm(x, norm=kind, eps=eps)
        return out
