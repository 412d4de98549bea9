"""What every kind of tables must do, judged by one dense parameter per table, and what only one kind does."""

from __future__ import annotations

import pytest
import torch
from headway.embedding import HashTableCollection

from dlrm_examples.dynamic_ctr.dynamic_tables import DynamicTables
from dlrm_examples.dynamic_ctr.initial_vectors import uniform_vectors
from dlrm_examples.dynamic_ctr.log import Feature, Jagged
from dlrm_examples.dynamic_ctr.static_tables import StaticTables
from dlrm_examples.dynamic_ctr.tables import Tables, TableSettings

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
    return uniform_vectors(table, IDS, dim=SETTINGS.dim, span=SETTINGS.initial_range, seed=SETTINGS.seed)


def random_batch(generator: torch.Generator, *, num_examples: int = 12) -> dict[str, Jagged]:
    """Lists of 0 to 4 ids; many repeat."""
    batch = {}
    for feature in FEATURES:
        lengths = torch.randint(0, 5, (num_examples,), generator=generator)
        places = torch.randint(0, len(IDS), (int(lengths.sum()),), generator=generator)
        batch[feature.name] = Jagged(IDS[places], lengths)
    return batch


def pool(weights: dict[str, torch.Tensor], batch: dict[str, Jagged]) -> dict[str, torch.Tensor]:
    """By a loop over examples."""
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
    return torch.stack([vectors.square().sum() + vectors.sum() for vectors in pooled.values()]).sum()


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


def test_ids_that_were_not_trained_have_their_initial_vectors(tables: Tables) -> None:
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
    for vectors in pooled.values():
        assert vectors.tolist() == torch.zeros(3, SETTINGS.dim).tolist()


def test_dynamic_tables_get_rows_by_training_only() -> None:
    tables = DynamicTables(FEATURES, SETTINGS)
    batch = random_batch(torch.Generator().manual_seed(3))

    def num_rows(collection: HashTableCollection) -> int:
        return sum(table["rows"] for table in collection.statistics()["tables"].values())

    with torch.no_grad():
        tables(batch)
    assert num_rows(tables.collection) == 0
    tables(batch)
    different = {(feature.table, id_) for feature in FEATURES for id_ in batch[feature.name].values.tolist()}
    assert num_rows(tables.collection) == len(different)


def test_static_tables_name_an_id_that_they_do_not_have() -> None:
    tables = StaticTables(FEATURES[:1], {"video": IDS}, SETTINGS)
    for unknown in (4, 2**63 - 2):
        with pytest.raises(ValueError, match=f"table 'video' has no row for id {unknown}"):
            tables({"video": Jagged(torch.tensor([3, unknown]), torch.tensor([2]))})


def test_static_tables_begin_where_the_caller_says() -> None:
    tables = StaticTables(
        FEATURES[2:], {"user": IDS}, SETTINGS, initial_vectors=lambda table, ids: torch.full((len(ids), 6), 0.5)
    )
    assert tables({"user": Jagged(IDS[:2], torch.tensor([2]))})["user"].tolist() == [[1.0] * 6]


def test_initial_vectors_depend_on_seed_table_and_id_and_fill_their_range() -> None:
    ids = torch.arange(2000)
    vectors = uniform_vectors("a", ids, dim=6, span=0.3, seed=1)

    assert vectors.abs().max() <= 0.3
    assert vectors.mean().abs() < 0.01
    assert vectors.std().item() == pytest.approx(0.3 / 3**0.5, rel=0.02)
    assert len(vectors.unique(dim=0)) == 2000
    assert torch.equal(vectors[7:9, :5], uniform_vectors("a", ids[7:9], dim=5, span=0.3, seed=1))
    assert not torch.equal(vectors, uniform_vectors("b", ids, dim=6, span=0.3, seed=1))
    assert not torch.equal(vectors, uniform_vectors("a", ids, dim=6, span=0.3, seed=2))
