# SPDX-License-Identifier: Apache-2.0
"""Lookups, gradients and their optimizer, on one rank."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from headway import _embedding
from headway.embedding import (
    Adam,
    Eviction,
    FeatureConfig,
    HashTableCollection,
    NoRoomError,
    Sgd,
    TableConfig,
    Uniform,
)
from headway.embedding.keys import Keys, from_unique
from headway.embedding.merging import MergedTable, table_id_of
from table_cases import (
    OPTIMIZERS,
    POOLING,
    TABLE_OF,
    integer_loss,
    join_batches,
    look_up,
    make_batch,
    make_one,
    make_tables,
    real_loss,
    records_of,
    vectors_of,
)


class PlainTables(torch.nn.Module):
    """Reference implementation of tables: one parameter per id."""

    def __init__(self, tables: HashTableCollection) -> None:
        super().__init__()
        self.parameter_of: dict[tuple[str, int], torch.nn.Parameter] = {}  # By table and id.
        names = {table_id_of(name): name for name in ("users", "items", "cities")}
        for ids, table_ids, _, _, embeddings, _ in records_of(tables):
            for i in range(len(ids)):
                parameter = torch.nn.Parameter(torch.from_numpy(embeddings[i].copy()))
                # Records have table ids as int32, table_id_of() gives the same 32 bits without a sign.
                self.parameter_of[names[int(table_ids[i]) & 0xFFFFFFFF], int(ids[i])] = parameter

    def forward(self, batch: dict[str, tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        outputs = {}
        for name, (ids, lengths, *weights) in batch.items():
            embeddings = [self.parameter_of[TABLE_OF[name], int(each)] for each in ids]
            if weights:
                embeddings = [vector * weight for vector, weight in zip(embeddings, weights[0], strict=True)]
            if POOLING[name] is None:
                outputs[name] = torch.stack(embeddings)
                continue
            pooled, at = [], 0
            for length in lengths.tolist():
                one = sum(embeddings[at : at + length], torch.zeros(8 if name != "city" else 4))
                pooled.append(one / length if POOLING[name] == "mean" and length > 0 else one)
                at += length
            outputs[name] = torch.stack(pooled)
        return outputs


# ``dedup``: duplicates are removed before the exchange (first), at the owner rank (second), at both or nowhere.
@pytest.mark.parametrize("dedup", ["none", "first", "second", "both"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_vectors_and_learning_are_those_of_plain_parameters(optimizer: str, dedup: str) -> None:
    tables = make_tables(OPTIMIZERS[optimizer], dedup=dedup)
    batches = [make_batch(seed) for seed in range(4)]
    tables(join_batches(batches))  # Inserts all ids.
    plain = PlainTables(tables)
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adagrad
    # A sixteenth of the rate: SGD with 0.25 diverges, since weights of 3 multiply a gradient of real_loss() by 9.
    theirs = kind(list(plain.parameter_of.values()), lr=OPTIMIZERS[optimizer].lr / 16)
    for group in tables.optimizer.param_groups:
        group["lr"] /= 16
    for batch in batches * 2:
        outputs, expected = tables(batch), plain(batch)
        assert list(outputs) == list(POOLING)
        for name in outputs:
            torch.testing.assert_close(outputs[name], expected[name], rtol=1e-5, atol=1e-5)
        real_loss(outputs).backward()
        tables.optimizer.step()
        theirs.zero_grad()
        real_loss(expected).backward()
        theirs.step()


def test_micro_batches_learn_what_the_big_batch_does() -> None:
    for optimizer in OPTIMIZERS.values():
        small, big = make_tables(optimizer), make_tables(optimizer)
        for step in range(3):
            batches = [make_batch(10 * step + part) for part in range(3)]
            for batch in batches:
                integer_loss(small(batch), batch).backward()
            small.optimizer.step()
            whole = join_batches(batches)
            integer_loss(big(whole), whole).backward()
            big.optimizer.step()
        for ours, expected in zip(records_of(small), records_of(big), strict=True):
            for column, other in zip(ours, expected, strict=True):
                assert (column == other).all()


def test_gradients_may_be_dropped() -> None:
    tables = make_tables()
    batch = make_batch(1)
    before = tables(batch)
    real_loss(before).backward()
    tables.optimizer.zero_grad()
    tables.optimizer.step()
    torch.testing.assert_close(tables(batch), before, rtol=0, atol=0)


def test_a_batch_may_begin_before_the_step_before_it_ends() -> None:
    ahead, plain = make_tables(), make_tables()
    batches = [make_batch(seed) for seed in range(5)]
    pending = ahead.begin(batches[0])
    for i, batch in enumerate(batches):
        outputs = ahead(pending)
        if i + 1 < len(batches):
            pending = ahead.begin(batches[i + 1])
        for tables, found in ((ahead, outputs), (plain, plain(batch))):
            real_loss(found).backward()
            tables.optimizer.step()
    torch.testing.assert_close(ahead.eval()(batches[0]), plain.eval()(batches[0]), rtol=0, atol=0)


def test_evaluation_inserts_and_counts_nothing() -> None:
    tables = make_tables()
    first = tables.eval()(make_batch(1))
    assert tables.statistics()["tables"]["users+items"]["rows"] == 0
    assert not any(embeddings.grad_fn is None for embeddings in first.values())
    again = tables.train()(make_batch(1))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert tables.statistics()["tables"]["users+items"]["rows"] > 0


def test_counts_are_those_of_lookups_whatever_the_deduplication() -> None:
    batch = make_batch(3)
    for dedup in ("none", "first", "second", "both"):
        tables = make_tables(dedup=dedup)
        tables(batch)
        tables(batch)
        ids, table_ids, counts, *_ = records_of(tables)[0]
        for i in range(len(ids)):
            features = [name for name in TABLE_OF if table_id_of(TABLE_OF[name]) == int(table_ids[i]) & 0xFFFFFFFF]
            lookups = sum(int((batch[name][0] == int(ids[i])).sum()) for name in features)
            assert counts[i] == 2 * lookups


def test_full_tables_count_what_gets_no_row_or_raise() -> None:
    limits = {"max_rows": 3}
    batch = make_batch(5)
    tables = make_tables(table=limits)
    tables(batch)
    statistics = tables.statistics()["tables"]
    assert [statistics[name]["rows"] for name in ("users", "items", "cities")] == [3, 3, 3]
    assert statistics["items"]["refused"] > 0  # Lookups of ids that got no row.
    with pytest.raises(NoRoomError, match="ids got no row: their table is full"):
        make_tables(table=limits, strict=True)(batch)
    integer_loss(tables(batch), batch).backward()
    tables.optimizer.step()
    assert tables.statistics()["tables"]["items"]["dropped_gradients"] > 0


def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    tables = make_one()
    loss = look_up(tables, 3).sum()
    loss.backward(retain_graph=True)
    tables.optimizer.step()
    loss.backward()
    tables.optimizer.step()
    assert vectors_of(tables) == {3: -2.0}


def test_tables_that_the_loss_does_not_depend_on_are_not_updated() -> None:
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=dim, optimizer=Adam(lr=0.1)) for name, dim in (("a", 2), ("b", 3))],
        features=[FeatureConfig(name, table=name) for name in "ab"],
    )
    one = {name: (torch.tensor([1]), torch.tensor([1])) for name in "ab"}
    sum(embeddings.sum() for embeddings in tables(one).values()).backward()
    tables.optimizer.step()
    before = {name: embeddings.detach().clone() for name, embeddings in tables(one).items()}
    tables(one)["a"].sum().backward()
    tables.optimizer.step()
    after = tables(one)
    assert not torch.equal(after["a"], before["a"])
    assert torch.equal(after["b"], before["b"])


def test_a_bad_rate_changes_nothing() -> None:
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=dim, optimizer=Sgd(lr=1)) for name, dim in (("a", 2), ("b", 3))],
        features=[FeatureConfig(name, table=name) for name in "ab"],
    )
    one = {name: (torch.tensor([1]), torch.tensor([1])) for name in "ab"}
    before = tables(one)
    sum(embeddings.sum() for embeddings in before.values()).backward()
    tables.optimizer.param_groups[1]["lr"] = float("nan")
    with pytest.raises(ValueError, match="the learning rate of table b must be finite"):
        tables.optimizer.step()
    tables.optimizer.param_groups[1]["lr"] = 1.0
    tables.optimizer.step()
    for name, embeddings in tables(one).items():
        torch.testing.assert_close(embeddings, before[name].detach() - 1)


def test_memory_of_a_collection_is_given_back_with_it() -> None:
    tables = make_one()
    reference = weakref.ref(tables)
    del tables
    assert reference() is None, "memory is given back at once"


def test_steps_that_are_forgotten_are_asked_for() -> None:
    tables = make_one()
    with pytest.warns(UserWarning, match="64 backward passes wait for optimizer.step"):
        for _ in range(70):
            look_up(tables, 1).sum().backward()


def train_scaled(scale: float | None, *, unscales: bool = False) -> tuple[list[Any], float]:
    """Trains with a GradScaler, as in half precision; one gradient overflows."""
    tables = make_tables(Sgd(lr=2**-6))
    linear = torch.nn.Linear(8, 1)
    torch.nn.init.constant_(linear.weight, 0.5)
    dense = torch.optim.SGD(linear.parameters(), lr=2**-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=1000, enabled=scale is not None)
    for step in range(4):
        batch = make_batch(step)
        outputs = tables(batch)
        loss = linear(outputs["user"]).sum() + outputs["city"].sum()
        if step == 2:
            if scale is None:
                continue
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        dense_first = [dense, tables.optimizer]
        if unscales and scale is not None:
            for optimizer in dense_first:
                scaler.unscale_(optimizer)
        for optimizer in dense_first:
            scaler.step(optimizer)
        dense.zero_grad()
        scaler.update()
    return records_of(tables), scaler.get_scale()


@pytest.mark.parametrize("unscales", [False, True])
def test_loss_scaling_is_undone_and_steps_that_overflow_are_skipped(unscales: bool) -> None:
    plain, _ = train_scaled(None)
    scaled, scale = train_scaled(2.0**12, unscales=unscales)
    assert scale == 2.0**11, "the overflow was seen"
    for ours, expected in zip(scaled, plain, strict=True):
        assert (ours[0] == expected[0]).all()
        assert abs(ours[4] - expected[4]).max() < 1e-6


def test_the_rate_of_each_merged_table_is_its_own() -> None:
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=2, optimizer=Sgd(lr=lr)) for name, lr in (("a", 1.0), ("b", 2.0), ("c", 1.0))],
        features=[FeatureConfig(name, table=name) for name in "abc"],
    )
    assert [group["name"] for group in tables.optimizer.param_groups] == ["a+c", "b"]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(tables.optimizer, gamma=0.5)
    one = {name: (torch.tensor([1]), torch.tensor([1])) for name in "abc"}
    for rate in (1.0, 0.5):
        before = tables(one)
        sum(embeddings.sum() for embeddings in before.values()).backward()
        tables.optimizer.step()
        scheduler.step()
        for name, embeddings in tables(one).items():
            torch.testing.assert_close(embeddings, before[name].detach() - rate * (2 if name == "b" else 1))
    state = tables.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 7.0
    tables.optimizer.load_state_dict(state)
    assert tables.optimizer.param_groups[0]["lr"] == 7.0


def make_rated(rates: dict[str, tuple[int, float]]) -> HashTableCollection:
    """Makes a collection of tables, given by name with dim and learning rate."""
    return HashTableCollection(
        tables=[TableConfig(name, dim=dim, optimizer=Sgd(lr=lr)) for name, (dim, lr) in rates.items()],
        features=[FeatureConfig(name, table=name) for name in rates],
    )


def rates_of(tables: HashTableCollection) -> dict[str, float]:
    return {name: group["lr"] for group in tables.optimizer.param_groups for name in group["tables"]}


def test_learning_rates_are_restored_by_the_names_of_tables() -> None:
    saved = make_rated({"a": (2, 1.0), "b": (3, 2.0), "c": (2, 1.0)})
    for group, rate in zip(saved.optimizer.param_groups, (0.25, 0.5), strict=True):
        group["lr"] = rate
    state = saved.optimizer.state_dict()
    other_order = make_rated({"b": (3, 9.0), "c": (2, 9.0), "a": (2, 9.0)})
    other_order.optimizer.load_state_dict(state)
    assert rates_of(other_order) == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert [group["name"] for group in other_order.optimizer.param_groups] == ["b", "c+a"]
    merged_otherwise = make_rated({"a": (2, 9.0), "new": (4, 8.0), "c": (2, 7.0)})
    merged_otherwise.optimizer.load_state_dict(state)
    assert rates_of(merged_otherwise) == {"a": 0.25, "new": 8.0, "c": 0.25}
    for group in state["param_groups"]:
        del group["tables"]  # States of an earlier version lack it.
    other_order = make_rated({"b": (3, 9.0), "c": (2, 9.0), "a": (2, 9.0)})
    other_order.optimizer.load_state_dict(state)
    assert rates_of(other_order) == {"a": 0.25, "b": 0.5, "c": 0.25}


def test_learning_rates_that_cannot_be_restored_are_told_of() -> None:
    state = make_rated({"a": (2, 1.0), "b": (2, 2.0)}).optimizer.state_dict()
    merged = make_rated({"a": (2, 3.0), "b": (2, 3.0)})
    with pytest.raises(ValueError, match="tables a and b are merged and share a learning rate, but the state has"):
        merged.optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="the state is of the tables a, b, and none of these is here: c"):
        make_rated({"c": (2, 1.0)}).optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="of another optimizer"):
        merged.optimizer.load_state_dict(torch.optim.SGD([torch.zeros(1)], lr=1).state_dict())
    assert rates_of(merged) == {"a": 3.0, "b": 3.0}


@pytest.mark.parametrize(
    "limit", [{"max_rows": 20, "eviction": Eviction(policy="lru")}, {"min_count": 5, "max_pending": 20}]
)
def test_a_flood_of_ids_in_one_table_takes_nothing_from_another(limit: dict[str, Any]) -> None:
    tables = HashTableCollection(
        tables=[TableConfig(name, dim=2, optimizer=Sgd(lr=1), **limit) for name in ("country", "item")],
        features=[FeatureConfig(name, table=name) for name in ("country", "item")],
    )
    few = (torch.arange(10), torch.tensor([10]))
    for step in range(4):
        many = torch.arange(20 * step, 20 * step + 20)
        tables({"country": few if step == 0 else (few[0][:0], torch.tensor([0])), "item": (many, torch.tensor([20]))})
        tables.optimizer.step()
    sizes = tables.statistics()["tables"]
    assert sizes["country"]["rows"] + sizes["country"]["pending"] == 10
    assert sizes["item"]["evicted"] + sizes["item"]["forgotten"] > 0  # Rows, and pending ids (without a row yet).


def test_tables_merge_unless_they_differ() -> None:
    table = {"optimizer": Sgd(lr=1), "initializer": Uniform(0, 1)}
    configs = [
        TableConfig("a", dim=2, **table),
        TableConfig("b", dim=2, **table),
        TableConfig("other_dim", dim=3, **table),
        TableConfig("other_rows", dim=2, hot_count=3, **table),
        TableConfig("limited", dim=2, max_rows=3, **table),
        TableConfig("limited_too", dim=2, max_rows=3, **table),
    ]
    tables = HashTableCollection(tables=configs, features=[FeatureConfig(c.name, table=c.name) for c in configs])
    with pytest.warns(DeprecationWarning, match="groups is deprecated.*use merged_tables"):
        assert tables.groups is tables.merged_tables
    assert [merged.name for merged in tables.merged_tables] == [
        "a+b",
        "other_dim",
        "other_rows",
        "limited",
        "limited_too",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user": None}, "feature user is missing; there are: item, tags, city"),
        ({"user": (torch.tensor([1.5]), torch.tensor([1]))}, "feature user: values must be int64 or int32"),
        ({"user": (torch.tensor([1, 2]), torch.tensor([1]))}, "feature user: lengths must be from 0 and add up to 2"),
        ({"user": (torch.tensor([1]), torch.tensor([2, -1]))}, "feature user: lengths must be from 0"),
        ({"user": (torch.tensor([1]), torch.tensor([1]), torch.ones(2))}, "feature user: 2 weights for 1 values"),
        ({"user": (torch.tensor([1]),)}, "feature user: values, lengths and perhaps weights"),
    ],
)
def test_bad_features_are_named_and_change_nothing(change: dict[str, Any], message: str) -> None:
    tables = make_tables()
    batch = {**make_batch(1), **change}
    with pytest.raises(ValueError, match=message):
        tables({name: columns for name, columns in batch.items() if columns is not None})
    assert tables.statistics()["tables"]["users+items"]["rows"] == 0


def test_bad_configurations_are_named() -> None:
    table = TableConfig("t", dim=2, optimizer=Sgd(lr=1))
    feature = FeatureConfig("f", table="t")
    for tables, features, message in [
        ([table], [FeatureConfig("f", table="x")], "feature f: there is no table x"),
        ([table], [feature, feature], "feature f is there twice"),
        ([table, table], [feature], "tables t and t have the same table id"),
        ([table], [], "no feature uses the table t"),
    ]:
        with pytest.raises(ValueError, match=message):
            HashTableCollection(tables=tables, features=features)
    with pytest.raises(ValueError, match="dedup must be"):
        HashTableCollection(tables=[table], features=[feature], dedup="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eviction needs max_rows"):
        TableConfig("t", dim=2, optimizer=Sgd(lr=1), eviction=Eviction(policy="lfu"))


def test_limits_are_those_of_all_ranks_together() -> None:
    config = TableConfig("t", dim=2, optimizer=Sgd(lr=1), max_rows=1 << 32, max_pending=1 << 32)
    merged, thread_pool = MergedTable((config,)), _embedding.ThreadPool(1)
    assert merged.build(seed=0, num_ranks=8, thread_pool=thread_pool).size()["rows"] == 0
    # With several ranks each may have a tenth more than its share of max_rows.
    with pytest.raises(ValueError, match="table t of 2 ranks: a table has at most 1071644672 rows on a rank, not 2362"):
        merged.build(seed=0, num_ranks=2, thread_pool=thread_pool)
    with pytest.raises(ValueError, match="table t: max_rows must be from 1 to"):
        TableConfig("t", dim=2, optimizer=Sgd(lr=1), max_rows=1 << 49)


def test_a_keyed_jagged_tensor_is_looked_up_as_a_dictionary_is() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jagged_tensor = pytest.importorskip("torchrec.sparse.jagged_tensor")
    batch = {name: columns[:2] for name, columns in make_batch(4).items()}
    keyed = jagged_tensor.KeyedJaggedTensor(
        keys=["not looked up", *batch],
        values=torch.cat([torch.tensor([5]), *(values for values, _ in batch.values())]),
        lengths=torch.cat([torch.tensor([1, 0, 0, 0, 0, 0]), *(lengths for _, lengths in batch.values())]),
    )
    ours, theirs = make_tables(), make_tables()
    expected = theirs(batch)
    for name, embeddings in ours(keyed).items():
        torch.testing.assert_close(embeddings, expected[name], rtol=0, atol=0)
    with pytest.raises(ValueError, match="feature user is missing; there are: item, tags, city"):
        ours(
            jagged_tensor.KeyedJaggedTensor(
                keys=["item", "tags", "city"], values=torch.tensor([1]), lengths=torch.tensor([1, 0, 0])
            )
        )


def test_devices_that_tables_cannot_be_on_are_named() -> None:
    with pytest.raises(ValueError, match="tables are on the CPU or a CUDA device, not on meta"):
        make_tables(device="meta")
    keys = from_unique(Keys(torch.arange(3)))
    with pytest.raises(ValueError, match="there are not 2 unique keys, but 3"):
        keys.narrow(2)
    with pytest.raises(ValueError, match="num_known is for keys on CUDA devices"):
        Keys(torch.arange(3), num_known=torch.ones(1, dtype=torch.int32))
