"""Jagged features of a batch, put together by the merged table that they are looked up in.

The number of operations on tensors does not depend on the number of features, apart from taking them in. On CUDA
nothing waits for the device: what only it knows is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from headway._embedding import Keys
from headway.embedding.config import FeatureConfig
from headway.embedding.devices import place_name, tensor_on
from headway.embedding.merging import table_numbers

#: Feature name to (values_K, lengths_B) or (values_K, lengths_B, weights_K), or a ``KeyedJaggedTensor``.
Features = Mapping[str, Sequence[torch.Tensor]] | Any


@dataclass(frozen=True)
class GroupInput:
    """The features of one merged table, one after the other."""

    keys: Keys
    #: (bags + 1,) int64: of features that are pooled a bag for each list, of others for each id; None: each id is one
    offsets: torch.Tensor | None
    weights: torch.Tensor | None  #: (K,)
    num_bags: list[int]  #: by feature


@dataclass(frozen=True)
class _Jagged:
    name: str
    ids: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor | None


@dataclass(frozen=True)
class _Sizes:
    """Of a batch, by feature, on the host and on the device."""

    num_ids: int
    num_lists: int
    ids_F: torch.Tensor
    lists_F: torch.Tensor
    end_ids_F: torch.Tensor  #: where its ids and lists end among those of all
    end_lists_F: torch.Tensor


class FeatureGroup:
    """The features of one merged table, and how they are put together on ``device``."""

    def __init__(self, configs: Sequence[FeatureConfig], device: torch.device) -> None:
        self.configs = list(configs)
        self._device = device
        self._numbers = table_numbers(config.table for config in configs).to(device)
        is_mean = [config.pooling == "mean" for config in configs]
        self._is_mean = torch.tensor(is_mean, device=device) if any(is_mean) else None

    def join(self, features: Mapping[str, Any]) -> GroupInput:
        """Puts the features together.

        Raises:
            ValueError: a feature is missing, its tensors do not fit each other, or are on another device. Lengths on
                CUDA that do not fit are an assertion of the device.
        """
        jagged = [_jagged(features, config.name, self._device) for config in self.configs]
        sizes = self._sizes(jagged)
        lengths = torch.cat([each.lengths for each in jagged]).to(torch.int64)
        list_offsets = torch.cat((lengths.new_zeros(1), lengths)).cumsum(0)
        _expect_fitting(jagged, lengths, list_offsets, sizes)
        are_pooled = [config.pooling is not None for config in self.configs]
        ids = torch.cat([each.ids for each in jagged]).to(torch.int64)
        return GroupInput(
            keys=Keys(ids, self._numbers.repeat_interleave(sizes.ids_F, output_size=sizes.num_ids)),
            offsets=list_offsets if all(are_pooled) else _mixed_offsets(jagged, are_pooled),
            weights=self._weights(jagged, lengths, sizes),
            num_bags=[
                (each.lengths if is_pooled else each.ids).numel()
                for each, is_pooled in zip(jagged, are_pooled, strict=True)
            ],
        )

    def _sizes(self, jagged: Sequence[_Jagged]) -> _Sizes:
        ids, lists = [each.ids.numel() for each in jagged], [each.lengths.numel() for each in jagged]
        by_feature = tensor_on(self._device, [ids, lists, [*accumulate(ids)], [*accumulate(lists)]], torch.int64)
        return _Sizes(sum(ids), sum(lists), *by_feature.unbind())

    def _weights(self, jagged: Sequence[_Jagged], lengths: torch.Tensor, sizes: _Sizes) -> torch.Tensor | None:
        weights = None
        if any(each.weights is not None for each in jagged):
            parts = [
                torch.ones(each.ids.numel(), device=self._device) if each.weights is None else each.weights
                for each in jagged
            ]
            weights = torch.cat(parts).to(torch.float32)
        if self._is_mean is not None:
            is_mean = self._is_mean.repeat_interleave(sizes.lists_F, output_size=sizes.num_lists)
            shares = torch.where(is_mean, lengths, 1).to(torch.float32).reciprocal()
            shares = shares.repeat_interleave(lengths, output_size=sizes.num_ids)
            weights = shares if weights is None else weights * shares
        return weights


def _mixed_offsets(jagged: Sequence[_Jagged], are_pooled: Sequence[bool]) -> torch.Tensor | None:
    """Where only some features are pooled, or none."""
    if not any(are_pooled):
        return None
    most_ids = max(each.ids.numel() for each in jagged)
    ones = torch.ones(most_ids, dtype=torch.int64, device=jagged[0].ids.device)
    bags = [
        each.lengths if is_pooled else ones[: each.ids.numel()]
        for each, is_pooled in zip(jagged, are_pooled, strict=True)
    ]
    return torch.cat((ones.new_zeros(1), *bags)).cumsum(0)


def columns_of(features: Features) -> Mapping[str, Any]:
    """The features by name; of a ``KeyedJaggedTensor`` a ``JaggedTensor`` each."""
    if isinstance(features, Mapping):
        return features
    by_name: Mapping[str, Any] = features.to_dict()
    return by_name


def _jagged(features: Mapping[str, Any], name: str, device: torch.device) -> _Jagged:
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
        if tensor.dim() != 1 or tensor.dtype not in (torch.int64, torch.int32) or tensor.device != device:
            raise ValueError(
                f"feature {name}: {what} must be int64 or int32 of one dimension on {place_name(device)}, not "
                f"{tensor.dtype} of shape {tuple(tensor.shape)} on {place_name(tensor.device)}"
            )
    if weights is not None:
        if weights.device != device:
            raise ValueError(
                f"feature {name}: weights must be on {place_name(device)}, not on {place_name(weights.device)}"
            )
        if weights.shape != ids.shape:
            raise ValueError(f"feature {name}: {weights.numel()} weights for {ids.numel()} values")
        if weights.requires_grad:
            raise ValueError(f"feature {name}: weights get no gradient; detach them")
    return _Jagged(name, ids, lengths, weights)


def _expect_fitting(
    jagged: Sequence[_Jagged], lengths: torch.Tensor, list_offsets: torch.Tensor, sizes: _Sizes
) -> None:
    """Checks all at once, and looks for the feature to name only if something is wrong."""
    is_fitting = (list_offsets[sizes.end_lists_F] == sizes.end_ids_F).all() & (lengths >= 0).all()
    if is_fitting.is_cuda:
        names = ", ".join(each.name for each in jagged)
        torch._assert_async(is_fitting, f"lengths of features do not add up to the number of their values: {names}")
        return
    if bool(is_fitting):
        return
    for each in jagged:
        if bool((each.lengths < 0).any()) or int(each.lengths.sum()) != each.ids.numel():
            raise ValueError(
                f"feature {each.name}: lengths must be from 0 and add up to {each.ids.numel()}, the number of values"
            )
