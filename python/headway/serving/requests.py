# SPDX-License-Identifier: Apache-2.0
"""Requests, their checks, and the inputs of the dense part that they become.

Shapes: U users, N items of all users, T tokens: values of a sequence, over all users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.serving.package import Axis, Bucket, Manifest

#: Ids (K,) int64 and lengths (U,) or (N,) int64 of a feature.
Lists = tuple[Tensor, Tensor]
_MOST = 1 << 31  #: Largest length, and number of items of a user: sums of them fit int64.


class RequestError(ValueError):
    """A request does not fit the model. The message names the tensor and the limit."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Items to score, those of the first user first. A model without features of users has no users.

    Attributes:
        features: of each served feature its ids and lengths.
        dense: (U, width) or (N, width) float32 of each dense feature.
        items: (U,) int64, number of items of each user; None: the model has no features of users.
    """

    features: Mapping[str, Lists]
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    items: Tensor | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of a request: ``tokens`` is that of its longest sequence."""

    items: int
    users: int
    tokens: int

    def of(self, axis: Axis) -> int:
        return self.users if axis == "user" else self.items


def sizes_of(request: Request, manifest: Manifest) -> Sizes:
    """Checks a request, and returns its sizes.

    Raises:
        RequestError: a tensor is missing, unknown, or has another dtype or shape; lengths are negative, do not add up
            to the ids, or differ within a sequence.
    """
    _expect_names("feature", request.features, [each.name for each in manifest.features])
    _expect_names("dense feature", request.dense, [each.name for each in manifest.dense_features])
    sizes = _sizes(request, manifest)
    lengths_of: dict[str, Tensor] = {}
    for feature in manifest.features:
        ids, lengths = _lists_of(request, feature.name)
        _expect(f"{feature.name}.ids", ids, (int(ids.numel()),), torch.int64)
        _expect(f"{feature.name}.lengths", lengths, (sizes.of(feature.axis),), torch.int64)
        _expect_range(f"{feature.name}.lengths", lengths)
        if feature.is_single and bool((lengths != 1).any()):
            raise RequestError(f"{feature.name}.lengths: each list has exactly one id")
        if int(lengths.sum()) != len(ids):
            raise RequestError(f"{feature.name}.lengths add up to {int(lengths.sum())}, and there are {len(ids)} ids")
        if feature.sequence is not None:
            first = lengths_of.setdefault(feature.sequence, lengths)
            if not torch.equal(first, lengths):
                raise RequestError(f"{feature.name}.lengths differ from those of another feature of {feature.sequence}")
            _expect_length(feature.name, lengths, request, manifest.longest)
    for dense in manifest.dense_features:
        _expect(dense.name, request.dense[dense.name], (sizes.of(dense.axis), dense.width), torch.float32)
    return sizes


def dense_inputs(
    manifest: Manifest, bucket: Bucket, request: Request, embeddings: Mapping[str, Tensor], sizes: Sizes
) -> list[Tensor]:
    """Returns the inputs of the dense part, padded with zeros, in the order of ``Manifest``.

    Args:
        manifest: of the model.
        bucket: the size of the batch.
        request: a request, checked.
        embeddings: of each feature (U or N, dim), or (T, dim) of a sequence.
        sizes: of the request.
    """
    of_axis = {"user": bucket.users, "item": bucket.items}
    inputs = [
        _padded(embeddings[each.name], bucket.tokens if each.pooling is None else of_axis[each.axis])
        for each in manifest.features
    ]
    for sequence in manifest.sequences:
        first = next(each for each in manifest.features if each.sequence == sequence)
        inputs.append(_padded(request.features[first.name][1], bucket.users))
    inputs += [_padded(request.dense[each.name], of_axis[each.axis]) for each in manifest.dense_features]
    if manifest.has_users:
        assert request.items is not None, "sizes_of() has checked it"
        inputs.append(_padded(request.items, bucket.users))
    return inputs


def _sizes(request: Request, manifest: Manifest) -> Sizes:
    if manifest.has_users:
        if request.items is None:
            raise RequestError("items is missing: the number of items of each user")
        _expect("items", request.items, (int(request.items.numel()),), torch.int64)
        _expect_range("items", request.items)
        items, users = int(request.items.sum()), len(request.items)
    elif request.items is not None:
        raise RequestError("items is given, and the model has no features of users")
    else:
        items, users = int(_lists_of(request, manifest.features[0].name)[1].numel()), 0
    sequences = [each.name for each in manifest.features if each.pooling is None]
    tokens = max((int(_lists_of(request, name)[0].numel()) for name in sequences), default=0)
    return Sizes(items, users, tokens)


def _lists_of(request: Request, name: str) -> Lists:
    lists = request.features[name]
    if len(lists) != 2 or not all(isinstance(each, Tensor) for each in lists):
        raise RequestError(f"feature {name} must be a pair of tensors, ids and lengths")
    return lists


def _expect_range(name: str, numbers: Tensor) -> None:
    """Checks lengths, before they are added."""
    for wrong in numbers[(numbers < 0) | (numbers > _MOST)][:1].tolist():
        raise RequestError(f"{name}: {'a number is negative' if wrong < 0 else f'{wrong} is above {_MOST}'}")


def _expect_length(name: str, lengths: Tensor, request: Request, longest: int | None) -> None:
    """Checks that no user has a sequence and items that are too long together for the model."""
    if longest is None or request.items is None or len(lengths) == 0:
        return
    sums = lengths + request.items
    user = int(sums.argmax())
    if int(sums[user]) > longest:
        raise RequestError(
            f"{name}: user {user} has {int(lengths[user])} values and {int(request.items[user])} items, and {longest} "
            "are allowed together"
        )


def _expect_names(what: str, given: Mapping[str, object], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in given:
            raise RequestError(f"{what} {name} is missing")
    for name in given:
        if name not in wanted:
            raise RequestError(f"there is no {what} {name}, only {', '.join(wanted) or 'none'}")


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise RequestError(f"{name} must be {dtype} {shape}, not {tensor.dtype} {tuple(tensor.shape)}")


def _padded(rows: Tensor, size: int) -> Tensor:
    padded = rows.new_zeros(size, *rows.shape[1:])
    padded[: len(rows)] = rows
    return padded
