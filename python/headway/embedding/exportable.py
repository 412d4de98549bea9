# SPDX-License-Identifier: Apache-2.0
"""``ExportableLookup``: the lookup of a collection inside a model that ``torch.export`` traces.

Idea: a lookup is one call of an operator, ``torch.ops.headway.look_up``, on an object of C++. A tracer sees a fake
object, which knows only what shapes need: columns and pooling of each output. A saved program holds the name of the
lookup, and no rows. So the process that loads it, in Python or C++, first makes a lookup of that name.

Example: two features of 8 columns, "user" pooled and "history" not. For 3 users with 7 ids of history the outputs are
(3, 8) and (7, 8). The traced program has symbols instead of 3 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch._library.fake_class_registry import register_fake_class

import headway.ops  # noqa: F401  (defines torch.ops.headway)
from headway.embedding.collection import HashTableCollection


class ExportableLookup(nn.Module):
    """Looks up the tables of a collection, for inference, in a model that is exported.

    It inserts no rows, and its lookups do not count for admission and eviction. An id without a row has the embedding
    that ``TableConfig.unknown`` names. Its outputs have no gradient.
    ``torch.export.export(..., strict=False)``, ``torch.export.save()`` and AOTInductor accept it.

    Args:
        collection: the tables. They are shared: the lookup sees their updates.
        name: name of the lookup in saved programs. The process that loads one makes a lookup of this name before.

    Raises:
        ValueError: another lookup of this process has the name, or this collection has a lookup of another name.
    """

    def __init__(self, collection: HashTableCollection, name: str) -> None:
        super().__init__()
        self._feature_names = collection.looked_up_features
        self._lookup = collection.script_lookup(name)

    def forward(self, features: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Looks up a batch.

        Args:
            features: for each feature of the collection its ids (K,) int64 and lengths (B,).
        Returns:
            for each feature (B, dim), or (K, dim) without pooling; float32.
        Raises:
            ValueError: a feature is missing, or its tensors do not fit each other.
        """
        missing = [name for name in self._feature_names if name not in features]
        if missing:
            raise ValueError(f"feature {missing[0]} is missing")
        ids, lengths = ([features[name][i] for name in self._feature_names] for i in (0, 1))
        outputs = torch.ops.headway.look_up(self._lookup, ids, lengths, [None] * len(ids))
        return dict(zip(self._feature_names, outputs, strict=True))


class FakeTableLookup:
    """Stands for a lookup while a program is traced."""

    def __init__(self, dims: list[int], pooled: list[bool]) -> None:
        self._dims, self._pooled = dims, pooled

    @classmethod
    def __obj_unflatten__(cls, flat: Any) -> FakeTableLookup:
        """``flat``: ``dims`` and ``pooled`` by name, from ``__obj_flatten__()`` of the C++ object."""
        return cls(**dict(flat))

    def output_dims(self) -> list[int]:
        return self._dims

    def are_pooled(self) -> list[bool]:
        return self._pooled

    def _not_traceable(self, *arguments: Any) -> NoReturn:
        raise RuntimeError("only torch.ops.headway.look_up() of a lookup can be traced")

    begin = finish = apply = drop = register_as = _not_traceable


register_fake_class("headway::TableLookup", FakeTableLookup)  # type: ignore[arg-type]


@torch.library.register_fake("headway::look_up")  # type: ignore[untyped-decorator]
def _look_up_shapes(lookup: Any, ids: Any, lengths: Any, weights: Any) -> list[torch.Tensor]:
    return [
        of_ids.new_empty((of_lengths if is_pooled else of_ids).shape[0], dim, dtype=torch.float32)
        for of_ids, of_lengths, dim, is_pooled in zip(
            ids, lengths, lookup.output_dims(), lookup.are_pooled(), strict=True
        )
    ]
