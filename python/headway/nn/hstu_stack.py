"""HSTU layers one after the other.

Shapes: B sequences, T tokens of all of them, E columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway import ops, reference
from headway.nn.config import HSTUStackConfig
from headway.nn.hstu_layer import HSTULayer
from headway.nn.key_value_cache import KeyValueCache
from headway.nn.sequences import Sequences


class HSTUStack(nn.Module):
    """Layers of one config, and a last norm. :func:`headway.nn.renamed_state` loads what others have trained."""

    def __init__(self, config: HSTUStackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(HSTULayer(config.layer) for _ in range(config.num_layers))

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Gives (T, E) for x (T, E).

        Raises:
            ValueError: ``x`` or ``sequences`` do not fit the config or each other.
        """
        for layer in self.layers:
            x = layer(x, sequences)
        return self._final_norm(x)

    def extend(
        self, x: Tensor, sequences: Sequences, caches: Sequence[KeyValueCache] | None = None
    ) -> tuple[Tensor, list[KeyValueCache]]:
        """Computes new tokens only, for inference: what ``forward()`` gives for them behind the cached ones.

        That is the same as long as new tokens change nothing for cached ones, so they must be targets, unless the mask
        is causal without contextual tokens and tail, ``scale`` does not depend on lengths, and cached tokens asked at a
        time that stays (:func:`headway.nn.next_times` with ``last``). Targets do not belong in a cache: do not go on
        from what comes back for them.

        Args:
            x: (T, E), new tokens.
            sequences: of the new tokens; ``max_length`` is of cached and new ones together. ``num_contextual`` is that
                of the cached ones.
            caches: of each layer; None: there are no earlier tokens.

        Returns:
            (T, E), and caches with the new tokens.

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
