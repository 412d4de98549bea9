"""Jagged features of a batch, put together by the merged table that they are looked up in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headway._embedding import Keys
from headway.embedding.config import FeatureConfig
from headway.embedding.merging import table_number

#: Feature name to (values_K, lengths_B) or (values_K, lengths_B, weights_K), or a ``KeyedJaggedTensor``.
Features = Mapping[str, Sequence[torch.Tensor]] | Any


@dataclass(frozen=True)
class GroupInput:
    """The features of one merged table, one after the other."""

    keys: Keys
    offsets: torch.Tensor  #: (bags + 1,) int64: of features that are pooled a bag for each list, of others for each id
    weights: torch.Tensor | None  #: (K,)
    num_bags: list[int]  #: by feature


def group_features(features: Features, configs: Sequence[FeatureConfig]) -> GroupInput:
    """Puts the features of one merged table together.

    Raises:
        ValueError: a feature is missing, or its tensors do not fit each other.
    """
    jagged = [_jagged(features, config.name) for config in configs]
    bag_lengths = [
        lengths if config.pooling is not None else torch.ones_like(ids)
        for config, (ids, lengths, _) in zip(configs, jagged, strict=True)
    ]
    sizes = torch.tensor([len(ids) for ids, _, _ in jagged])
    numbers = torch.tensor([table_number(config.table) for config in configs]).to(torch.int32)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), *bag_lengths)).cumsum(0)
    return GroupInput(
        keys=Keys(torch.cat([ids for ids, _, _ in jagged]), numbers.repeat_interleave(sizes)),
        offsets=offsets,
        weights=_weights(configs, jagged),
        num_bags=[len(lengths) for lengths in bag_lengths],
    )


_Jagged = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def _weights(configs: Sequence[FeatureConfig], jagged: Sequence[_Jagged]) -> torch.Tensor | None:
    if all(
        config.pooling != "mean" and weights is None for config, (_, _, weights) in zip(configs, jagged, strict=True)
    ):
        return None
    parts = []
    for config, (ids, lengths, weights) in zip(configs, jagged, strict=True):
        part = torch.ones(len(ids)) if weights is None else weights
        if config.pooling == "mean":
            part = part / lengths.repeat_interleave(lengths)
        parts.append(part)
    return torch.cat(parts)


def _jagged(features: Features, name: str) -> _Jagged:
    ids, lengths, weights = _columns(features, name)
    for tensor, what in ((ids, "values"), (lengths, "lengths")):
        if tensor.dim() != 1 or tensor.dtype not in (torch.int64, torch.int32) or tensor.device.type != "cpu":
            raise ValueError(
                f"feature {name}: {what} must be int64 or int32 of one dimension on the CPU, not {tensor.dtype} "
                f"of shape {tuple(tensor.shape)} on {tensor.device}"
            )
    if bool((lengths < 0).any()) or int(lengths.sum()) != len(ids):
        raise ValueError(f"feature {name}: lengths must be from 0 and add up to {len(ids)}, the number of values")
    if weights is not None:
        if weights.shape != ids.shape:
            raise ValueError(f"feature {name}: {weights.numel()} weights for {len(ids)} values")
        if weights.requires_grad:
            raise ValueError(f"feature {name}: weights get no gradient; detach them")
        weights = weights.to(torch.float32)
    return ids.to(torch.int64), lengths.to(torch.int64), weights


def _columns(features: Features, name: str) -> _Jagged:
    if isinstance(features, Mapping):
        if name not in features:
            raise ValueError(f"feature {name} is missing; there are: {', '.join(features)}")
        columns = tuple(features[name])
        if len(columns) not in (2, 3):
            raise ValueError(
                f"feature {name}: values, lengths and perhaps weights are needed, not {len(columns)} tensors"
            )
        return columns if len(columns) == 3 else (*columns, None)
    if name not in features.keys():  # noqa: SIM118 - a KeyedJaggedTensor is no mapping
        raise ValueError(f"feature {name} is missing; there are: {', '.join(features.keys())}")
    feature = features[name]
    return feature.values(), feature.lengths(), feature.weights_or_none()
