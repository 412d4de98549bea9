# SPDX-License-Identifier: Apache-2.0
"""Sharded collections with dynamic tables match unsharded dense collections in training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import headway.torchrec
import pytest
import torch
import torch.distributed as dist
from dynamic_models import (
    DIM,
    FEATURES,
    IDS,
    META,
    POOLED,
    SEQUENCE,
    TABLE_OF,
    WEIGHTED,
    Batch,
    Kind,
    Model,
    Trained,
    batches,
    expect_dense,
    make_batch,
    shard_model,
    sharded_collection,
    train_sharded,
    vectors_of,
)
from headway._embedding import LookupBatch
from headway.embedding import Adam, Eviction, NoRoomError, Sgd
from headway.torchrec import DynamicTable
from rank_processes import BACKENDS, run_ranks
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor

#: Number of ranks. One rank has a code path of its own, without exchanges.
SIZES = [1, 2]


def expect_trained(kind: Kind, optimizer: str, size: int, backend: str, **batch_kind: bool) -> list[Trained]:
    results: list[Trained] = run_ranks(train_sharded, size, kind, optimizer, batch_kind, backend=backend)
    expect_dense(results, kind, optimizer, **batch_kind)
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["sgd", "row_wise_adagrad"])
def test_sequences_learn_what_a_dense_collection_does(backend: str, optimizer: str) -> None:
    results = expect_trained(SEQUENCE, optimizer, 2, backend)
    assert sum(result[3]["rows"] for result in results) == 2 * len(IDS), "every id has its row, at one owner"
    assert [result[3]["kernels"] for result in results] == [1, 1], "tables of one configuration are merged"
    assert all(result[3]["rows"] > 0 for result in results), "ids are shared out"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("optimizer", ["adagrad", "row_wise_adagrad"])
def test_bags_of_sums_and_means_learn_what_a_dense_collection_does(backend: str, optimizer: str) -> None:
    results = expect_trained(POOLED, optimizer, 2, backend)
    assert results[0][3]["kernels"] == 2, "tables of other dimensions are apart"


@pytest.mark.parametrize("kind", [SEQUENCE, POOLED], ids=["sequence", "pooled"])
def test_adam_learns_what_it_does_densely(kind: Kind) -> None:
    expect_trained(kind, "adam", 2, "headway", everything=True)


@pytest.mark.parametrize("size", SIZES)
def test_weights_of_ids_multiply_vectors_and_gradients(size: int) -> None:
    expect_trained(WEIGHTED, "adagrad", size, "headway", weighted=True)


@pytest.mark.parametrize("size", [1, 3])
def test_results_do_not_depend_on_the_number_of_ranks(size: int) -> None:
    expect_trained(SEQUENCE, "adagrad", size, "gloo")
    expect_trained(POOLED, "sgd", size, "headway")


def test_both_backends_give_the_same_bits() -> None:
    gloo, ours = (run_ranks(train_sharded, 2, POOLED, "adagrad", {}, backend=backend) for backend in BACKENDS)
    assert [result[1] for result in gloo] == [result[1] for result in ours]


def count_lookups(rank: int) -> dict[int, int]:
    """Returns the lookup counts of this rank's rows of the table ``item`` after one batch."""
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1))
    parallel(next(batches(rank)))
    found: dict[int, int] = {}
    for name, records in parallel.state_dict().items():
        if name.endswith(".item.records"):
            read = records.read()
            found.update(zip(read.ids_K.tolist(), read.counts_K.tolist(), strict=True))
    return found


def test_counts_are_those_of_all_lookups_though_ids_travel_once() -> None:
    expected: dict[int, int] = {}
    for rank in range(2):
        features: Any = next(batches(rank)).features
        for name in ("clicks", "views"):
            for each in features[name].values().tolist():
                expected[each] = expected.get(each, 0) + 1
    first, second = run_ranks(count_lookups, 2)
    assert not first.keys() & second.keys()
    assert {**first, **second} == expected
    assert max(expected.values()) > 2, "there are duplicates"


def evaluate(rank: int) -> tuple[int, bool]:
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1))
    parallel.eval()
    with torch.no_grad():
        loss, _ = parallel(next(batches(rank)))
    return sum(kernel.table.size()["rows"] for kernel in sharded_collection(parallel).kernels()), bool(loss > 0)


def test_evaluation_inserts_nothing() -> None:
    assert run_ranks(evaluate, 2) == [(0, True), (0, True)]


def counts_of(parallel: Any) -> Counter[str]:
    """Sums the statistics of all tables. Tables with limits are not merged, so there are several."""
    total: Counter[str] = Counter()
    for statistics in headway.torchrec.statistics(parallel).values():
        total.update(statistics)
    return total


def forward_twice(rank: int) -> None:
    """Runs two forward passes before their backward passes. The rows of both must stay although others are evicted.

    A table evicts above ``high_water`` * ``max_rows`` rows, down to ``low_water`` * ``max_rows``.
    """
    parallel = shard_model(
        SEQUENCE, Sgd(lr=0.1), max_rows=12, eviction=Eviction(policy="lru", high_water=0.5, low_water=0.25)
    )
    first, second = (parallel(batch)[0] for batch in list(batches(rank))[:2])
    second.backward()
    before = counts_of(parallel)
    first.backward()
    after = counts_of(parallel)
    assert before["evicted"] == 0 < after["evicted"]
    assert after["dropped_gradients"] == after["refused"] == 0


@pytest.mark.parametrize("size", SIZES)
def test_backward_passes_may_come_in_another_order(size: int) -> None:
    run_ranks(forward_twice, size)


def promote(rank: int) -> None:
    """Moves rows between a lookup and its gradients: a later lookup makes them hot, so bfloat16 becomes float32.

    A row is hot once it has ``hot_count`` lookups; ``promoted`` counts the rows that became hot.
    """
    outcomes = []
    for hot_count in (0, 10):
        parallel = shard_model(SEQUENCE, Sgd(lr=2.0), hot_count=hot_count)
        first, second, third = (make_batch(rank, step, everything=True) for step in range(3))
        early, learned = (parallel(batch)[0] for batch in (first, second))
        learned.backward()
        (before,) = headway.torchrec.statistics(parallel).values()
        late = parallel(third)[0]
        (after,) = headway.torchrec.statistics(parallel).values()
        early.backward()
        late.backward()
        assert hot_count == 0 or before["promoted"] == 0 < after["promoted"]
        outcomes.append(vectors_of(parallel))
    torch.testing.assert_close(*outcomes, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("size", SIZES)
def test_gradients_find_rows_that_have_moved(size: int) -> None:
    run_ranks(promote, size)


def read_late(rank: int) -> None:
    """Moves rows, and reuses their memory, between a lookup and the reading of its embeddings."""
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1), hot_count=20)
    (sharded,) = sharded_collection(parallel)._dynamic_lookups()
    (kernel,), lookup = sharded.kernels, sharded.tables
    num_features = len(FEATURES)

    def look_up(first: int) -> LookupBatch:
        ids, lengths = torch.arange(first, first + 100), torch.tensor([100])
        begun = lookup.begin(
            [ids] * num_features,
            [lengths] * num_features,
            [None] * num_features,
            inserts=True,
            evaluates=False,
            counts_refused=False,
        )
        lookup.start_keys(begun)
        lookup.look_up(begun, inserts=True)
        return begun

    def embeddings_of(begun: LookupBatch) -> torch.Tensor:
        lookup.start_embeddings(begun)
        return torch.cat(lookup.take_embeddings(begun))

    early, late = look_up(0), look_up(0)
    before = embeddings_of(early)
    for step in range(2, 22):
        kernel.table.begin_step(step, 1)  # Rows of lookups since step 1 are in use, so none is evicted.
        moving, others = look_up(0), look_up(100)
    assert kernel.table.statistics()["promoted"] > 0
    torch.testing.assert_close(embeddings_of(late), before, rtol=0.01, atol=0.01)
    torch.testing.assert_close(embeddings_of(moving), before, rtol=0.01, atol=0.01)
    assert not torch.allclose(embeddings_of(others), before, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("size", SIZES)
def test_vectors_are_read_from_rows_that_have_moved(size: int) -> None:
    run_ranks(read_late, size)


def overflow(rank: int) -> tuple[int, bool]:
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1), max_rows=5)
    loss, _ = parallel(make_batch(rank, 0, everything=True))
    loss.backward()
    counts = counts_of(parallel)
    assert counts["refused"] == counts["dropped_gradients"] > 0
    sharded_collection(parallel).strict = True
    with pytest.raises(NoRoomError, match="12 ids got no row: their table is full"):
        parallel(make_batch(rank, 0, everything=True))
    return counts["rows"], bool(torch.isfinite(loss))


def test_ids_without_room_are_counted_or_raise() -> None:
    """A rank may hold half of a table's 5 rows and a tenth more, rounded up: 3. Two tables and 24 ids are looked up."""
    results = run_ranks(overflow, 2)
    assert results == [(6, True), (6, True)]


def varying_batches(rank: int) -> None:
    """Compares a batch with a batch size per feature with the same batch written out by its inverse indices."""
    strides, places = [[2], [1], [3]], torch.tensor([[0, 1, 0], [0, 0, 0], [2, 1, 0]])
    bags = [torch.tensor(each) for each in ([5, -1], [0], [3, 7, 8], [1000], [], [5, 5])]
    firsts = [0, 2, 3]
    written_out = [bags[first + place] for first, row in zip(firsts, places.tolist(), strict=True) for place in row]

    def make(parts: list[torch.Tensor], **more: Any) -> KeyedJaggedTensor:
        lengths = torch.tensor([len(part) for part in parts])
        return KeyedJaggedTensor(keys=FEATURES, values=torch.cat(parts).long(), lengths=lengths, **more)

    varying = make(bags, stride_per_key_per_rank=strides, inverse_indices=(FEATURES, places))
    outcomes = []
    for features in (varying, make(written_out)):
        parallel = shard_model(POOLED, Sgd(lr=0.1))
        embeddings = sharded_collection(parallel)(features).values()
        (embeddings * torch.arange(embeddings.numel()).view_as(embeddings)).sum().backward()
        outcomes.append((embeddings.detach(), vectors_of(parallel)))
    torch.testing.assert_close(*outcomes)
    with pytest.raises(ValueError, match="would learn nothing"):
        sharded_collection(shard_model(SEQUENCE, Sgd(lr=0.1)))(varying)


@pytest.mark.parametrize("size", SIZES)
def test_bags_may_have_a_batch_size_for_each_feature(size: int) -> None:
    run_ranks(varying_batches, size)


def without_ids(rank: int) -> None:
    """Trains without ids on rank 0, then without ids on all ranks."""
    for kind in (SEQUENCE, POOLED):
        parallel = shard_model(kind, Adam(lr=0.1))
        for having in ({1}, set()):
            full = make_batch(rank, 0)
            none = KeyedJaggedTensor(
                keys=FEATURES,
                values=torch.empty(0, dtype=torch.int64),
                lengths=torch.zeros_like(full.features.lengths()),
            )
            loss, _ = parallel(full if rank in having else Batch(none, full.target_B))
            loss.backward()
        rows = torch.tensor([sum(each["rows"] for each in headway.torchrec.statistics(parallel).values())])
        dist.all_reduce(rows)
        seen = {(TABLE_OF[name], id) for name in FEATURES for id in make_batch(1, 0).features[name].values().tolist()}
        assert int(rows) == len(seen) > 0


def test_batches_may_have_no_ids() -> None:
    run_ranks(without_ids, 2)


def use_one_feature(rank: int) -> None:
    """Trains with a loss of the second of three features only. The other features get no gradient."""
    parallel = shard_model(SEQUENCE, Sgd(lr=1.0))
    before = vectors_of(parallel)
    ones = torch.ones(len(FEATURES), dtype=torch.int64)
    features = KeyedJaggedTensor(keys=FEATURES, values=torch.stack([IDS[0], IDS[1], IDS[1]]), lengths=ones)
    sharded_collection(parallel)(features)["views"].values().sum().backward()
    after = vectors_of(parallel)
    assert torch.equal(after["user"], before["user"])
    moved = torch.zeros(len(IDS), 1)
    moved[1] = 1
    torch.testing.assert_close(before["item"] - after["item"], moved.expand(-1, DIM))


@pytest.mark.parametrize("size", SIZES)
def test_features_that_the_loss_does_not_depend_on_may_be_there(size: int) -> None:
    run_ranks(use_one_feature, size)


def give_ids(rank: int) -> None:
    configs = [EmbeddingConfig(name="item", embedding_dim=4, num_embeddings=9, feature_names=["clicks", "views"])]
    collection = EmbeddingCollection(tables=configs, need_indices=True, device=META)
    parallel = headway.torchrec.shard(torch.nn.Sequential(collection), {"item": DynamicTable(optimizer=Sgd(lr=0.1))})
    features = KeyedJaggedTensor(keys=["clicks", "views"], values=IDS[:3], lengths=torch.tensor([1, 0, 1, 1]))
    found = parallel(features)
    assert [found[name].weights().tolist() for name in ("clicks", "views")] == [IDS[:1].tolist(), IDS[1:3].tolist()]
    assert [found[name].lengths().tolist() for name in ("clicks", "views")] == [[1, 0], [1, 1]]


@pytest.mark.parametrize("size", SIZES)
def test_ids_are_given_with_their_vectors_if_a_collection_wants_them(size: int) -> None:
    run_ranks(give_ids, size)


def share_a_feature(rank: int) -> None:
    configs = [
        EmbeddingConfig(name=table, embedding_dim=4, num_embeddings=9, feature_names=features)
        for table, features in (("first", ["one", "both"]), ("second", ["both"]))
    ]
    model = torch.nn.Sequential(EmbeddingCollection(tables=configs, device=META))
    tables = {table: DynamicTable(optimizer=Sgd(lr=0.1)) for table in ("first", "second")}
    parallel = headway.torchrec.shard(model, tables)
    ids = torch.tensor([1, 2, 2**62])
    features = KeyedJaggedTensor(keys=["both", "one"], values=ids, lengths=torch.tensor([1, 0, 1, 1]))
    embeddings = {name: jagged.values() for name, jagged in parallel(features).items()}
    assert {name: len(values) for name, values in embeddings.items()} == {"one": 2, "both@first": 1, "both@second": 1}
    assert not torch.equal(embeddings["both@first"], embeddings["both@second"])


@pytest.mark.parametrize("size", SIZES)
def test_a_feature_may_be_looked_up_in_several_tables(size: int) -> None:
    run_ranks(share_a_feature, size)


def backward_twice(rank: int) -> list[str]:
    parallel = shard_model(SEQUENCE, Sgd(lr=0.1))
    found = parallel.module.embeddings(make_batch(rank, 0).features)
    loss = sum(found[name].values().sum() for name in FEATURES)  # Operators that save no tensors.
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_backward_pass_over_a_graph_is_refused(size: int) -> None:
    for errors in run_ranks(backward_twice, size):
        assert len(errors) == 1 and "a second time" in errors[0]


def test_a_model_on_meta_has_no_memory_for_vectors() -> None:
    assert {weight.device.type for weight in Model(SEQUENCE).embeddings.parameters()} == {"meta"}
