# SPDX-License-Identifier: Apache-2.0
"""Concatenates the jagged features of a batch that are looked up in one merged table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from headway._embedding import FeatureJoiner, JoinedFeatures
from headway.embedding.config import FeatureConfig
from headway.embedding.merging import table_id_of
from headway.embedding.per_sample_weights import PerSampleWeights

#: Maps feature names to (values_K, lengths_B) or (values_K, lengths_B, weights_K); or a ``KeyedJaggedTensor``.
Features = Mapping[str, Sequence[torch.Tensor]] | Any


class MergedFeatures:
    """The features of one merged table, and their concatenation on ``device``."""

    def __init__(self, configs: Sequence[FeatureConfig], device: torch.device) -> None:
        self.configs = list(configs)
        self._joiner = FeatureJoiner(
            names=[config.name for config in configs],
            tables=[table_id_of(config.table) for config in configs],
            poolings=[config.pooling for config in configs],
            device=device,
        )

    def join(self, features: Mapping[str, Any]) -> tuple[JoinedFeatures, list[PerSampleWeights]]:
        """Concatenates the features. On CUDA the number of kernels does not depend on the number of features.

        It does not wait for the device.

        Args:
            features: values, lengths and possibly weights by feature name.
        Returns:
            the concatenated features, and the weights that require a gradient.
        Raises:
            ValueError: a feature is missing, its tensors do not fit each other, or are on another device. Lengths on
                CUDA that do not fit are an assertion of the device.
        """
        ids, lengths, weights = zip(*(_tensors_of(features, config.name) for config in self.configs), strict=True)
        if not any(each is not None and each.requires_grad for each in weights):
            return self._joiner.join(ids, lengths, weights), []
        joined = self._joiner.join(ids, lengths, [None if each is None else each.detach() for each in weights])
        first_keys = [0, *accumulate(len(each) for each in ids)]
        return joined, [
            PerSampleWeights(each, lengths[i].clone(), self.configs[i].pooling, feature=i, first_key=first_keys[i])
            for i, each in enumerate(weights)
            if each is not None and each.requires_grad
        ]


def columns_of(features: Features) -> Mapping[str, Any]:
    """Returns the features by name. A ``KeyedJaggedTensor`` gives one ``JaggedTensor`` per feature.

    Raises:
        ValueError: the input is neither a mapping nor a ``KeyedJaggedTensor``.
    """
    if isinstance(features, Mapping):
        return features
    if not hasattr(features, "to_dict"):
        raise ValueError(
            "features must be a KeyedJaggedTensor, or a mapping of names to (values, lengths) as tensors, not "
            f"{_described(features)}"
        )
    by_name: Mapping[str, Any] = features.to_dict()
    return by_name


def _tensors_of(features: Mapping[str, Any], name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Returns ids, lengths and weights (None if there are none) of a feature."""
    if name not in features:
        raise ValueError(f"feature {name} is missing; there are: {', '.join(map(str, features))}")
    ids, lengths, weights = _columns_of_one(features[name], name)
    if not isinstance(ids, torch.Tensor) or not isinstance(lengths, torch.Tensor):
        raise ValueError(
            f"feature {name}: (values, lengths) as tensors are needed, not ({_described(ids)}, {_described(lengths)})"
        )
    if weights is not None and not isinstance(weights, torch.Tensor):
        raise ValueError(f"feature {name}: weights must be a tensor, not {_described(weights)}")
    return ids, lengths, weights


def _columns_of_one(feature: Any, name: str) -> tuple[Any, Any, Any]:
    if isinstance(feature, Sequence) and not isinstance(feature, str):
        if len(feature) not in (2, 3):
            raise ValueError(
                f"feature {name}: values, lengths and perhaps weights are needed, not {len(feature)} tensors"
            )
        ids, lengths, *rest = feature
        return ids, lengths, rest[0] if rest else None
    if hasattr(feature, "weights_or_none"):
        return feature.values(), feature.lengths(), feature.weights_or_none()
    hint = ""
    if isinstance(feature, torch.Tensor):
        hint = ": give the ids one list after the other, and the length of each list"
        if feature.is_nested:
            hint = ": give (nested.values(), nested.offsets().diff())"
    raise ValueError(f"feature {name}: (values, lengths) as tensors are needed, not {_described(feature)}{hint}")


def _described(value: Any) -> str:
    """Describes the kind of an argument for messages."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return "a nested tensor"
    return f"a tensor of shape {tuple(value.shape)}"
