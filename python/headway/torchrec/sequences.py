"""What a collection of sequences gives: a jagged tensor for each feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec import JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.types import Awaitable, LazyAwaitable


class SequencesAwaitable(LazyAwaitable[dict[str, JaggedTensor]]):  # type: ignore[misc]
    """Vectors that come for each feature apart, so that their gradients do, and need not be put together by copies.

    Args:
        vectors: of each sharding; gives (K, D) for each of its features.
        features: of each sharding, as they were looked up.
        names: of what is given, by sharding.
        others: sequences of other shardings; None: there are none.
        need_indices: whether ids are given as weights.
    """

    def __init__(
        self,
        vectors: Sequence[Awaitable[Sequence[torch.Tensor]]],
        features: Sequence[KeyedJaggedTensor],
        names: Sequence[Sequence[str]],
        *,
        others: Awaitable[dict[str, JaggedTensor]] | None = None,
        need_indices: bool,
    ) -> None:
        super().__init__()
        self._shardings = list(zip(vectors, features, names, strict=True))
        self._others = others
        self._need_indices = need_indices

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        found: dict[str, JaggedTensor] = {} if self._others is None else self._others.wait()
        for vectors, features, names in self._shardings:
            lengths_F = features.lengths().view(len(names), features.stride()).unbind()
            ids_F = self._ids_of(features, len(names))
            for name, lengths, vectors_KD, ids_K in zip(names, lengths_F, vectors.wait(), ids_F, strict=True):
                found[name] = JaggedTensor(vectors_KD, lengths=lengths, weights=ids_K)
        return found

    def _ids_of(self, features: KeyedJaggedTensor, num_features: int) -> Sequence[torch.Tensor | None]:
        if not self._need_indices:
            return [None] * num_features
        ids_F: Sequence[torch.Tensor] = features.values().split_with_sizes(features.length_per_key())
        return ids_F
