# SPDX-License-Identifier: Apache-2.0
"""Batches with keys in any order, with additional keys, and without samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dynamic_models import (
    FEATURES,
    IDS,
    POOLED,
    SEQUENCE,
    Kind,
    make_batch,
    shard_model,
    sharded_collection,
    vectors_of,
)
from headway.embedding import Sgd
from rank_processes import run_ranks
from tensordict import TensorDict
from torchrec import KeyedJaggedTensor

#: Number of ranks. One rank has a code path of its own, without exchanges.
SIZES = [1, 2]
KINDS = pytest.mark.parametrize("kind", [SEQUENCE, POOLED], ids=["sequence", "pooled"])


def in_order(features: KeyedJaggedTensor, names: list[str]) -> KeyedJaggedTensor:
    """Reorders the keys of features. ``other`` stands for a feature without a table."""
    by_name = features.to_dict()
    columns = [by_name["user" if name == "other" else name] for name in names]
    return KeyedJaggedTensor(
        keys=names,
        values=torch.cat([each.values() for each in columns]),
        lengths=torch.cat([each.lengths() for each in columns]),
    )


def as_dict(features: KeyedJaggedTensor, names: list[str]) -> TensorDict:
    by_name = features.to_dict()
    return TensorDict({name: by_name[name] for name in names}, batch_size=[features.stride()])


def values_of(found: Any) -> dict[str, torch.Tensor]:
    by_name = found.to_dict() if hasattr(found, "to_dict") else {name: each.values() for name, each in found.items()}
    return {name: value.detach() for name, value in by_name.items()}


def change_order(rank: int, kind: Kind) -> None:
    collection = sharded_collection(shard_model(kind, Sgd(lr=0.1)))
    features = make_batch(rank, 0).features
    expected = values_of(collection(features))
    orders = [["user", "clicks", "views"], ["other", "views", "user", "clicks"], FEATURES, FEATURES[::-1]]
    for names in orders[rank:] + orders[:rank]:  # The order also differs between ranks.
        torch.testing.assert_close(values_of(collection(in_order(features, names))), expected, rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@KINDS
def test_features_are_found_by_name_in_every_batch(kind: Kind, size: int) -> None:
    run_ranks(change_order, size, kind)


def pass_dicts(rank: int, kind: Kind) -> None:
    collection = sharded_collection(shard_model(kind, Sgd(lr=0.1)))
    features = make_batch(rank, 0).features
    expected = values_of(collection(as_dict(features, FEATURES)))
    for names in (FEATURES[::-1], ["views", "user", "clicks"]):
        torch.testing.assert_close(values_of(collection(as_dict(features, names))), expected, rtol=0, atol=0)


@KINDS
def test_features_of_a_tensor_dict_are_found_by_name(kind: Kind) -> None:
    run_ranks(pass_dicts, 1, kind)


def reorder_varying(rank: int) -> None:
    """Looks up batches with a batch size per feature (VBE). Keys and inverse indices may differ in their order."""
    strides = {"clicks": 2, "views": 1, "user": 3}
    inverse_of = {"clicks": [0, 1, 0], "views": [0, 0, 0], "user": [2, 1, 0]}
    bags = {"clicks": [[5, -1], [0]], "views": [[3, 7, 8]], "user": [[1000], [], [5, 5]]}
    collection = sharded_collection(shard_model(POOLED, Sgd(lr=0.1)))

    def make(names: list[str], inverse: list[str]) -> KeyedJaggedTensor:
        rows = [bag for name in names for bag in bags[name]]
        return KeyedJaggedTensor(
            keys=names,
            values=torch.tensor([id for bag in rows for id in bag]),
            lengths=torch.tensor([len(bag) for bag in rows]),
            stride_per_key_per_rank=[[strides[name]] for name in names],
            inverse_indices=(inverse, torch.tensor([inverse_of[name] for name in inverse])),
        )

    expected = values_of(collection(make(FEATURES, FEATURES)))
    for names, inverse in ((FEATURES[::-1], FEATURES[::-1]), (FEATURES, FEATURES[::-1]), (FEATURES[::-1], FEATURES)):
        torch.testing.assert_close(values_of(collection(make(names, inverse))), expected, rtol=0, atol=0)


def test_inverse_indices_are_found_by_name() -> None:
    run_ranks(reorder_varying, 1)


def lack_features(rank: int) -> None:
    collection = sharded_collection(shard_model(SEQUENCE, Sgd(lr=0.1)))
    features = make_batch(rank, 0).features
    collection(features)
    with pytest.raises(ValueError, match="the batch lacks the features views; it has: user, clicks"):
        collection(in_order(features, ["user", "clicks"]))
    with pytest.raises(ValueError, match="the batch has the features user more than once"):
        collection(in_order(features, ["user", "views", "clicks", "user"]))


def test_a_batch_that_lacks_features_is_refused_by_name() -> None:
    run_ranks(lack_features, 1)


def without_samples(rank: int, kind: Kind) -> None:
    """Trains first without samples on any rank, then without samples on the last rank. The others learn as usual."""
    parallel, alone = (shard_model(kind, Sgd(lr=0.1)) for _ in range(2))
    none = torch.empty(0, dtype=torch.int64)
    empty = KeyedJaggedTensor(keys=FEATURES[::-1], values=none, lengths=none)
    no_ids = KeyedJaggedTensor(keys=FEATURES, values=none, lengths=torch.zeros(len(FEATURES) * 5, dtype=torch.int64))
    collection = sharded_collection(parallel)
    sum_of(collection(empty)).backward()
    full = make_batch(0, 0).features
    found = collection(full if rank == 0 else empty)
    lengths = [found[name].size(0) if kind.pooled else len(found[name].lengths()) for name in FEATURES]
    assert lengths == [5 if rank == 0 else 0] * len(FEATURES)
    sum_of(found).backward()
    sum_of(sharded_collection(alone)(full if rank == 0 else no_ids)).backward()
    torch.testing.assert_close(vectors_of(parallel, IDS), vectors_of(alone, IDS), rtol=0, atol=0)


def sum_of(found: Any) -> torch.Tensor:
    embeddings = found.values() if hasattr(found, "to_dict") else torch.cat([each.values() for each in found.values()])
    return (embeddings.square()).sum()


@pytest.mark.parametrize("size", SIZES)
@KINDS
def test_a_rank_may_have_no_samples(kind: Kind, size: int) -> None:
    run_ranks(without_samples, size, kind)
