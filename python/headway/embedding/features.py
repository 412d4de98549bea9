# SPDX-License-Identifier: Apache-2.0
"""The forms in which features may be given to a collection.

Shapes: K ids, B lists of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Maps feature names to (values_K, lengths_B) or (values_K, lengths_B, weights_K); or a ``KeyedJaggedTensor``.
Features = Mapping[str, Sequence[torch.Tensor]] | Any


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


def tensors_of(features: Mapping[str, Any], name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
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
