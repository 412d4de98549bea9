# SPDX-License-Identifier: Apache-2.0
"""The output of a collection of sequences: a ``JaggedTensor`` for each feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec import JaggedTensor, KeyedJaggedTensor
from torchrec.distributed.types import Awaitable, LazyAwaitable


class SequencesAwaitable(LazyAwaitable[dict[str, JaggedTensor]]):  # type: ignore[misc]
    """Awaits the embeddings of each feature as a tensor of its own. Their gradients then need no copy to be joined.

    Args:
        embeddings: for each sharding an awaitable of (K, D) embeddings for each of its F features: K ids, D columns.
        features: for each sharding the features that were looked up.
        names: for each sharding the names of the outputs.
        others: awaitable of the sequences of other shardings; None: there are none.
        need_indices: return ids as the weights of the jagged tensors.
    """

    def __init__(
        self,
        embeddings: Sequence[Awaitable[Sequence[torch.Tensor]]],
        features: Sequence[KeyedJaggedTensor],
        names: Sequence[Sequence[str]],
        *,
        others: Awaitable[dict[str, JaggedTensor]] | None = None,
        need_indices: bool,
    ) -> None:
        super().__init__()
        self._shardings = list(zip(embeddings, features, names, strict=True))
        self._others = others
        self._need_indices = need_indices

    def _wait_impl(self) -> dict[str, JaggedTensor]:
        found: dict[str, JaggedTensor] = {} if self._others is None else self._others.wait()
        for embeddings, features, names in self._shardings:
            lengths_F = features.lengths().view(len(names), features.stride()).unbind()
            ids_F = self._ids_of(features, len(names))
            for name, lengths, embeddings_KD, ids_K in zip(names, lengths_F, embeddings.wait(), ids_F, strict=True):
                found[name] = JaggedTensor(embeddings_KD, lengths=lengths, weights=ids_K)
        return found

    def _ids_of(self, features: KeyedJaggedTensor, num_features: int) -> Sequence[torch.Tensor | None]:
        if not self._need_indices:
            return [None] * num_features
        ids_F: Sequence[torch.Tensor] = features.values().split_with_sizes(features.length_per_key())
        return ids_F
