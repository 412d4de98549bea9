"""Jagged features of a batch, put together by the merged table that they are looked up in.

The number of operations on tensors does not depend on the number of features, apart from taking them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headway._embedding import Keys
from headway.embedding.config import FeatureConfig
from headway.embedding.merging import table_numbers

#: Feature name to (values_K, lengths_B) or (values_K, lengths_B, weights_K), or a ``KeyedJaggedTensor``.
Features = Mapping[str, Sequence[torch.Tensor]] | Any


@dataclass(frozen=True)
class GroupInput:
    """The features of one merged table, one after the other."""

    keys: Keys
    offsets: torch.Tensor  #: (bags + 1,) int64: of features that are pooled a bag for each list, of others for each id
    weights: torch.Tensor | None  #: (K,)
    num_bags: list[int]  #: by feature


@dataclass(frozen=True)
class _Jagged:
    name: str
    ids: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None


class FeatureGroup:
    """The features of one merged table, and how they are put together."""

    def __init__(self, configs: Sequence[FeatureConfig]) -> None:
        self.configs = list(configs)
        self._numbers = table_numbers(config.table for config in configs)
        self._is_mean = torch.tensor([config.pooling == "mean" for config in configs])

    def join(self, features: Mapping[str, Any]) -> GroupInput:
        """Puts the features together.

        Raises:
            ValueError: a feature is missing, or its tensors do not fit each other.
        """
        jagged = [_jagged(features, config.name) for config in self.configs]
        num_ids = torch.tensor([each.ids.numel() for each in jagged])
        num_lists = torch.tensor([each.lengths.numel() for each in jagged])
        lengths = torch.cat([each.lengths for each in jagged]).to(torch.int64)
        _expect_fitting(jagged, lengths, num_ids, num_lists)
        ones = torch.ones(int(num_ids.max()), dtype=torch.int64)
        pooled = [config.pooling is not None for config in self.configs]
        bags = [
            each.lengths if is_pooled else ones[: each.ids.numel()]
            for each, is_pooled in zip(jagged, pooled, strict=True)
        ]
        return GroupInput(
            keys=Keys(
                torch.cat([each.ids for each in jagged]).to(torch.int64), self._numbers.repeat_interleave(num_ids)
            ),
            offsets=torch.cat((ones.new_zeros(1), *bags)).cumsum(0),
            weights=self._weights(jagged, lengths, num_lists),
            num_bags=[each.numel() for each in bags],
        )

    def _weights(
        self, jagged: Sequence[_Jagged], lengths: torch.Tensor, num_lists: torch.Tensor
    ) -> torch.Tensor | None:
        weights = None
        if any(each.weights is not None for each in jagged):
            parts = [torch.ones(each.ids.numel()) if each.weights is None else each.weights for each in jagged]
            weights = torch.cat(parts).to(torch.float32)
        if bool(self._is_mean.any()):
            shares = torch.where(self._is_mean.repeat_interleave(num_lists), lengths, 1).to(torch.float32).reciprocal()
            shares = shares.repeat_interleave(lengths)
            weights = shares if weights is None else weights * shares
        return weights


def columns_of(features: Features) -> Mapping[str, Any]:
    """The features by name; of a ``KeyedJaggedTensor`` a ``JaggedTensor`` each."""
    if isinstance(features, Mapping):
        return features
    by_name: Mapping[str, Any] = features.to_dict()
    return by_name


def _jagged(features: Mapping[str, Any], name: str) -> _Jagged:
    if name not in features:
        raise ValueError(f"feature {name} is missing; there are: {', '.join(features)}")
    feature = features[name]
    if isinstance(feature, Sequence):
        if len(feature) not in (2, 3):
            raise ValueError(
                f"feature {name}: values, lengths and perhaps weights are needed, not {len(feature)} tensors"
            )
        ids, lengths, *rest = feature
        weights = rest[0] if rest else None
    else:
        ids, lengths, weights = feature.values(), feature.lengths(), feature.weights_or_none()
    for tensor, what in ((ids, "values"), (lengths, "lengths")):
        if tensor.dim() != 1 or tensor.dtype not in (torch.int64, torch.int32) or tensor.device.type != "cpu":
            raise ValueError(
                f"feature {name}: {what} must be int64 or int32 of one dimension on the CPU, not {tensor.dtype} "
                f"of shape {tuple(tensor.shape)} on {tensor.device}"
            )
    if weights is not None:
        if weights.shape != ids.shape:
            raise ValueError(f"feature {name}: {weights.numel()} weights for {ids.numel()} values")
        if weights.requires_grad:
            raise ValueError(f"feature {name}: weights get no gradient; detach them")
    return _Jagged(name, ids, lengths, weights)


def _expect_fitting(
    jagged: Sequence[_Jagged], lengths: torch.Tensor, num_ids: torch.Tensor, num_lists: torch.Tensor
) -> None:
    """Checks all at once, and looks for the feature to name only if something is wrong."""
    ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))[num_lists.cumsum(0)]
    if torch.equal(ends, num_ids.cumsum(0)) and not bool((lengths < 0).any()):
        return
    for each in jagged:
        if bool((each.lengths < 0).any()) or int(each.lengths.sum()) != each.ids.numel():
            raise ValueError(
                f"feature {each.name}: lengths must be from 0 and add up to {each.ids.numel()}, the number of values"
            )
