# SPDX-License-Identifier: Apache-2.0
"""Static and dynamic tables, checked against one dense parameter per table; then what only one of the two kinds does.

Static tables have a row for each of the given ids from the start. Dynamic tables give an id a row when it is trained,
within ``TableLimits``.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from dlrm_examples.streaming_ctr.dynamic_tables import DynamicTables
from dlrm_examples.streaming_ctr.initial_embeddings import uniform_embeddings
from dlrm_examples.streaming_ctr.static_tables import StaticTables
from dlrm_examples.streaming_ctr.tables import TableLimits, Tables, TableSettings, TableUse
from dlrm_examples.support.data.log import Feature, Jagged

FEATURES = (
    Feature(name="video", table="video"),
    Feature(name="recent", table="video", pooling="mean"),
    Feature(name="user", table="user"),
)
IDS = torch.tensor([-(2**63), -5, 0, 3, 8, 2**62 + 1, 2**63 - 1])
SETTINGS = TableSettings(dim=6, lr=0.1, initial_range=0.3, seed=2**33 + 7)


@pytest.fixture(params=["static", "dynamic"])
def tables(request: pytest.FixtureRequest) -> Tables:
    if request.param == "static":
        return StaticTables(FEATURES, {"video": IDS, "user": IDS}, SETTINGS)
    return DynamicTables(FEATURES, SETTINGS)


def initial(table: str) -> torch.Tensor:
    return uniform_embeddings(table, IDS, dim=SETTINGS.dim, span=SETTINGS.initial_range, seed=SETTINGS.seed)


def random_batch(generator: torch.Generator, *, num_examples: int = 12) -> dict[str, Jagged]:
    """Draws lists of 0 to 4 ids; many ids repeat."""
    batch = {}
    for feature in FEATURES:
        lengths = torch.randint(0, 5, (num_examples,), generator=generator)
        positions = torch.randint(0, len(IDS), (int(lengths.sum()),), generator=generator)
        batch[feature.name] = Jagged(IDS[positions], lengths)
    return batch


def pool(weights: dict[str, torch.Tensor], batch: dict[str, Jagged]) -> dict[str, torch.Tensor]:
    """Pools by a loop over examples."""
    pooled = {}
    for feature in FEATURES:
        values, lengths = batch[feature.name]
        rows = []
        for part in values.split(lengths.tolist()):
            total = weights[feature.table][torch.searchsorted(IDS, part)].sum(dim=0)
            rows.append(total / max(len(part), 1) if feature.pooling == "mean" else total)
        pooled[feature.name] = torch.stack(rows)
    return pooled


def loss_of(pooled: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([embeddings.square().sum() + embeddings.sum() for embeddings in pooled.values()]).sum()


@pytest.mark.parametrize("calls_per_step", [1, 2])
def test_training_is_that_of_dense_weights_with_row_wise_adagrad(tables: Tables, calls_per_step: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {table: initial(table).double().requires_grad_() for table in ("video", "user")}
    square_sums = {table: torch.zeros(len(IDS), dtype=torch.float64) for table in weights}

    for _ in range(8):
        for _ in range(calls_per_step):
            batch = random_batch(generator)
            pooled, expected = tables(batch), pool(weights, batch)
            for name in expected:
                torch.testing.assert_close(pooled[name], expected[name].float(), rtol=1e-4, atol=1e-5)
            loss_of(pooled).backward()
            loss_of(expected).backward()
        tables.step()
        for table, weight in weights.items():
            assert weight.grad is not None
            square_sums[table] += weight.grad.square().mean(dim=1)
            rate = SETTINGS.lr / (square_sums[table].sqrt() + SETTINGS.eps)
            weight.data -= rate[:, None] * weight.grad
            weight.grad = None


def test_a_look_up_without_gradients_takes_no_part_in_a_step(tables: Tables) -> None:
    batch = random_batch(torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = tables(batch)
        tables.step()
        after = tables(batch)
    for name in before:
        assert torch.equal(before[name], after[name])


def test_ids_that_were_not_trained_have_their_initial_embeddings(tables: Tables) -> None:
    learned, other = (Jagged(id_, torch.tensor([1])) for id_ in (IDS[:1], IDS[3:4]))
    loss_of(tables({"video": learned, "recent": learned, "user": learned})).backward()
    tables.step()
    with torch.no_grad():
        pooled = tables({"video": other, "recent": other, "user": learned})

    assert torch.equal(pooled["video"], initial("video")[3:4])
    assert not torch.equal(pooled["user"], initial("user")[:1])


def test_empty_lists_give_zeros(tables: Tables) -> None:
    empty = Jagged(torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    pooled = tables({feature.name: empty for feature in FEATURES})
    for embeddings in pooled.values():
        assert embeddings.tolist() == torch.zeros(3, SETTINGS.dim).tolist()


def test_dynamic_tables_get_rows_by_training_only() -> None:
    tables = DynamicTables(FEATURES, SETTINGS)
    batch = random_batch(torch.Generator().manual_seed(3))

    with torch.no_grad():
        tables(batch)
    assert tables.use().rows == 0
    tables(batch)
    different = {(feature.table, id_) for feature in FEATURES for id_ in batch[feature.name].values.tolist()}
    assert tables.use().rows == len(different)


def test_static_tables_name_an_id_that_they_do_not_have() -> None:
    tables = StaticTables(FEATURES[:1], {"video": IDS}, SETTINGS)
    for unknown in (4, 2**63 - 2):
        with pytest.raises(ValueError, match=f"table 'video' has no row for id {unknown}"):
            tables({"video": Jagged(torch.tensor([3, unknown]), torch.tensor([2]))})


def test_static_tables_begin_where_the_caller_says() -> None:
    tables = StaticTables(
        FEATURES[2:], {"user": IDS}, SETTINGS, initial_embeddings=lambda table, ids: torch.full((len(ids), 6), 0.5)
    )
    assert tables({"user": Jagged(IDS[:2], torch.tensor([2]))})["user"].tolist() == [[1.0] * 6]  # The sum of two rows.


def test_initial_embeddings_depend_on_seed_table_and_id_and_fill_their_range() -> None:
    ids = torch.arange(2000)
    embeddings = uniform_embeddings("a", ids, dim=6, span=0.3, seed=1)

    assert embeddings.abs().max() <= 0.3
    assert embeddings.mean().abs() < 0.01
    assert embeddings.std().item() == pytest.approx(0.3 / 3**0.5, rel=0.02)
    assert len(embeddings.unique(dim=0)) == 2000
    assert torch.equal(embeddings[7:9, :5], uniform_embeddings("a", ids[7:9], dim=5, span=0.3, seed=1))
    assert not torch.equal(embeddings, uniform_embeddings("b", ids, dim=6, span=0.3, seed=1))
    assert not torch.equal(embeddings, uniform_embeddings("a", ids, dim=6, span=0.3, seed=2))


def test_initial_embeddings_of_no_ids_have_the_width_of_the_table() -> None:
    assert uniform_embeddings("a", IDS[:0], dim=6, span=0.3, seed=1).shape == (0, 6)


def use_under(limits: TableLimits, *, num_ids: int) -> TableUse:
    """Use after three steps, each with new ids and with the first 40 ids."""
    tables = DynamicTables(FEATURES, SETTINGS, limits=limits)
    for step in range(3):
        ids = torch.cat([torch.arange(40), torch.arange(num_ids) + 1000 * (step + 1)])
        column = Jagged(ids, torch.tensor([len(ids)]))
        empty = Jagged(ids[:0], torch.tensor([0]))
        loss_of(tables({"video": column, "recent": empty, "user": empty})).backward()
        tables.step()
    return tables.use()


def test_without_limits_every_id_has_a_row_of_its_own() -> None:
    use = use_under(TableLimits(), num_ids=30)
    assert (use.rows, use.cold_rows, use.pending, use.evicted, use.refused) == (130, 0, 0, 0, 0)
    assert use.num_bytes > 130 * 4 * SETTINGS.dim


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_rows_beyond_the_limit_are_evicted(policy: Literal["lru", "lfu"]) -> None:
    # Each of the two tables may have half of max_rows, and only one is used.
    use = use_under(TableLimits(max_rows=200, eviction=policy), num_ids=30)
    assert use.rows <= 95  # Eviction begins at 95 rows.
    assert use.rows + use.evicted == 130
    assert use.refused == 0


def test_the_policy_reaches_the_tables() -> None:
    limits = [TableLimits(max_rows=100, eviction=policy) for policy in ("lru", "lfu")]
    evictions = [
        DynamicTables(FEATURES, SETTINGS, limits=each).collection.merged_tables[0].config.eviction for each in limits
    ]
    assert [eviction.policy for eviction in evictions if eviction is not None] == ["lru", "lfu"]


def test_without_eviction_new_ids_get_no_row_when_there_is_no_room() -> None:
    # max_rows is divided in proportion to table_sizes, the expected numbers of ids: "video" may have 100 rows.
    use = use_under(TableLimits(max_rows=150, table_sizes={"video": 20, "user": 10}), num_ids=30)
    assert (use.rows, use.evicted, use.refused) == (100, 0, 30)


@pytest.mark.parametrize(
    ("max_rows", "sizes", "shares"),
    [
        (3, [1000, 1, 1], [1, 1, 1]),
        (100, [1000, 1, 1], [98, 1, 1]),
        (150, [20, 0, 10], [99, 1, 50]),
        (7, [1, 1, 1], [2, 2, 3]),
    ],
)
def test_each_table_gets_a_row_and_all_together_no_more_than_the_limit(
    max_rows: int, sizes: list[int], shares: list[int]
) -> None:
    names = ["a", "b", "c"]
    tables = DynamicTables(
        [Feature(name=name, table=name) for name in names],
        SETTINGS,
        limits=TableLimits(max_rows=max_rows, table_sizes=dict(zip(names, sizes, strict=True))),
    )
    assert [table.max_rows for merged in tables.collection.merged_tables for table in merged.tables] == shares


def test_ids_wait_for_a_row_until_they_come_again() -> None:
    use = use_under(TableLimits(min_count=2), num_ids=30)
    assert (use.rows, use.pending) == (40, 90)


def test_rows_of_few_look_ups_are_in_bfloat16() -> None:
    use = use_under(TableLimits(hot_count=2), num_ids=30)
    assert (use.rows, use.cold_rows) == (130, 90)


def test_the_rows_of_static_tables_are_there_from_the_start() -> None:
    tables = StaticTables(FEATURES, {"video": IDS, "user": IDS[:3]}, SETTINGS)
    # Bytes of a row: its id, its embedding, and one float32 of row-wise Adagrad.
    assert tables.use() == TableUse(rows=10, num_bytes=10 * (8 + 4 * SETTINGS.dim + 4))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"eviction": "lfu"}, "eviction lfu needs max_rows"),
        ({"max_rows": 1}, "max_rows must be at least 2, a row for each table, not 1"),
        ({"max_rows": 9, "table_sizes": {"video": 0, "user": 0}}, "table_sizes must be at least 0, and one above 0"),
        ({"max_rows": 9, "table_sizes": {"video": 9, "user": -1}}, "table_sizes must be at least 0, and one above 0"),
        ({"max_rows": 9, "table_sizes": {"video": 9}}, "table_sizes has no size of the tables user"),
        ({"min_count": 0}, "min_count must be from 1"),
        ({"hot_count": -1}, "hot_count must be from 0"),
    ],
)
def test_limits_out_of_range_are_named(limits: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        DynamicTables(FEATURES, SETTINGS, limits=TableLimits(**limits))
