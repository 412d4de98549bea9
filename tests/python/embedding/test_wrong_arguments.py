# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of tables and lookups raise an error that names the mistake and a valid value."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from headway.embedding import (
    Adagrad,
    Adam,
    Constant,
    Eviction,
    FeatureConfig,
    HashTableCollection,
    NoOptimizer,
    Normal,
    Optimizer,
    RowWiseAdam,
    Sgd,
    TableConfig,
    Uniform,
)
from table_cases import make_batch, make_tables

IDS = torch.tensor([1, 2])
ONE_LIST = torch.tensor([2])
NEEDED = r"\(values, lengths\) as tensors are needed, not "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1, 2], [2]), NEEDED + r"\(a list, a list\)"),
        ((IDS, [2]), NEEDED + r"\(a tensor of shape \(2,\), a list\)"),
        ((IDS.numpy(), ONE_LIST.numpy()), NEEDED + r"\(a ndarray, a ndarray\)"),
        ([1, 2], NEEDED + r"\(a int, a int\)"),
        ("ab", NEEDED + "a str"),
        (None, NEEDED + "a NoneType"),
        (7, NEEDED + "a int"),
        (torch.tensor([[1, 2]]), NEEDED + r"a tensor of shape \(1, 2\): give the ids one list after the other"),
        (
            torch.nested.nested_tensor([IDS], layout=torch.jagged),
            NEEDED + r"a nested tensor: give \(nested.values\(\), nested.offsets\(\).diff\(\)\)",
        ),
        ((IDS, ONE_LIST, [1.0, 1.0]), "weights must be a tensor, not a list"),
        ((IDS[None], ONE_LIST), "values must be int64 or int32"),
    ],
)
def test_a_feature_that_is_not_of_tensors_is_named(given: Any, message: str) -> None:
    tables = make_tables()
    with pytest.raises(ValueError, match=f"^feature user: {message}"):
        tables({**make_batch(1), "user": given})
    assert tables.statistics()["tables"]["users+items"]["rows"] == 0


@pytest.mark.parametrize("given", [IDS, [1, 2], (IDS, ONE_LIST), None])
def test_features_without_names_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^features must be a KeyedJaggedTensor, or a mapping of names"):
        make_tables()(given)


def test_a_nested_tensor_is_taken_apart_as_its_message_says() -> None:
    tables = make_tables()
    nested = torch.nested.nested_tensor([IDS, IDS[:1]], layout=torch.jagged)
    found = tables({**make_batch(1), "user": (nested.values(), nested.offsets().diff())})["user"]
    assert found.shape == (2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "adam"}, r"optimizer must be one of headway.embedding, like Adam\(lr=1e-3\), not 'adam'"),
        ({"optimizer": torch.optim.Adam}, "optimizer must be one of headway.embedding, .*, not <class 'torch.optim"),
        ({"optimizer": torch.optim.Adam([torch.zeros(1)])}, "optimizer must be one of headway.embedding, .*, not Adam"),
        ({"optimizer": Adam}, "optimizer must be one of headway.embedding, .*, not <class 'headway.embedding"),
        ({"optimizer": Optimizer(lr=1)}, "optimizer must be one of headway.embedding, .*, not Optimizer"),
        ({"optimizer": None}, "optimizer must be one of headway.embedding, .*, not None"),
        ({"initializer": "uniform"}, "initializer must be one of headway.embedding, like Uniform.*, not 'uniform'"),
        ({"initializer": torch.nn.init.normal_}, "initializer must be one of headway.embedding, .*, not <function"),
        ({"eviction": "lru", "max_rows": 9}, 'eviction must be one of headway.embedding, like Eviction.*, not \'lru\''),
        ({"dim": "64"}, "dim must be an integer, not '64'"),
        ({"dim": 64.0}, "dim must be an integer, not 64.0"),
        ({"dim": None}, "dim must be an integer, not None"),
        ({"max_rows": 1e6}, "max_rows must be an integer, not 1000000.0"),
        ({"min_count": True}, "min_count must be an integer, not True"),
        ({"hot_count": None}, "hot_count must be an integer, not None"),
    ],
)  # fmt: skip
def test_a_table_of_wrong_arguments_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^table t: {message}"):
        TableConfig("t", **{"dim": 2, "optimizer": Sgd(lr=1), **arguments})


def test_integers_of_numpy_are_integers() -> None:
    table = TableConfig("t", dim=numpy.int64(2), optimizer=Sgd(lr=1), max_rows=numpy.int32(9))  # type: ignore[arg-type]
    tables = HashTableCollection(tables=[table], features=[FeatureConfig("f", table="t")])
    assert tables({"f": (IDS, ONE_LIST)})["f"].shape == (1, 2)


@pytest.mark.parametrize("name", ["", None, 7, Sgd(lr=1)])
def test_tables_and_features_need_a_name(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^a table needs a name, not "):
        TableConfig(name, dim=2, optimizer=Sgd(lr=1))
    with pytest.raises(ValueError, match=r"^a feature needs a name, not "):
        FeatureConfig(name, table="t")


def test_a_feature_is_given_the_name_of_its_table() -> None:
    table = TableConfig("t", dim=2, optimizer=Sgd(lr=1))
    with pytest.raises(ValueError, match=r"^feature f: table must be the name of a table, not TableConfig"):
        FeatureConfig("f", table=table)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", [Sgd, Adagrad, Adam, RowWiseAdam])
@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (-1, "finite and at least 0, not -1"),
        (float("nan"), "finite and at least 0, not nan"),
        (float("inf"), "finite and at least 0, not inf"),
        ("fast", "a number, not 'fast'"),
        (None, "a number, not None"),
        (torch.zeros(2), "a number, not tensor"),
        (torch.tensor(1j), "a number, not tensor"),
        ("0.1", "a number, not '0.1'"),
        (b"0.1", "a number, not b'0.1'"),
        (1 << 2000, "a number, not an integer above the range of a float"),
    ],
)
def test_a_learning_rate_is_a_number_from_zero(optimizer: type[Optimizer], rate: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^lr must be {message}"):
        optimizer(lr=rate)


@pytest.mark.parametrize("optimizer", [Adam, RowWiseAdam])
@pytest.mark.parametrize(
    ("betas", "message"),
    [
        ((0.9,), r"betas must be two numbers, not \(0.9,\)"),
        ((0.9, 0.99, 0.999), r"betas must be two numbers, not \(0.9, 0.99, 0.999\)"),
        (0.9, "betas must be two numbers, not 0.9"),
        ((0.9, "much"), r"betas\[1\] must be a number, not 'much'"),
    ],
)
def test_betas_are_two_numbers(optimizer: type[Adam], betas: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        optimizer(lr=1, betas=betas)


@pytest.mark.parametrize(
    ("initializer", "arguments", "message"),
    [
        (Constant, {"value": float("nan")}, "value must be a finite float32, not nan"),
        (Constant, {"value": 1e39}, r"value must be a finite float32, not 1e\+39"),
        (Constant, {"value": "0"}, "value must be a number, not '0'"),
        (Uniform, {"low": float("-inf"), "high": 0}, "low must be a finite float32, not -inf"),
        (Uniform, {"low": 0, "high": float("nan")}, "high must be a finite float32, not nan"),
        (Uniform, {"low": -3e38, "high": 3e38}, "initial values need finite limits"),
        (Uniform, {"low": 1, "high": 0}, "low must be at most high, not 1 with high 0"),
        (Normal, {"mean": float("inf")}, "mean must be a finite float32, not inf"),
        (Normal, {"std": float("nan")}, "std must be a finite float32, not nan"),
        (Normal, {"std": -0.01}, "std must be at least 0, not -0.01"),
    ],
)
def test_initial_values_are_checked_when_they_are_configured(
    initializer: type[Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        initializer(**arguments)


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True}])
def test_no_optimizer_takes_no_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^NoOptimizer trains nothing, so it takes no options: NoOptimizer"):
        NoOptimizer(**options)


def test_a_tensor_of_one_number_is_a_learning_rate() -> None:
    assert Sgd(lr=torch.tensor(0.5)) == Sgd(lr=0.5)  # type: ignore[arg-type]
    assert hash(Adam(lr=numpy.float64(0.5))) == hash(Adam(lr=0.5))


@pytest.mark.parametrize(
    ("rate", "message"),
    [(-0.5, "finite and at least 0, not -0.5"), (None, "a number, not None"), ("x", "a number, not")],
)
def test_a_wrong_rate_of_a_schedule_names_its_table(rate: Any, message: str) -> None:
    tables = make_tables()
    sum(embeddings.sum() for embeddings in tables(make_batch(1)).values()).backward()
    tables.optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(ValueError, match=rf"^the learning rate of table users\+items must be {message}"):
        tables.optimizer.step()


def test_a_collection_says_how_it_is_kept_instead_of_pickled(tmp_path: Path) -> None:
    tables = make_tables()
    for keep in (pickle.dumps, copy.copy, lambda module: torch.save(module, tmp_path / "tables.pt")):
        with (
            pytest.raises(TypeError, match=r"pickle its state_dict\(\), or use save\(\) and load\(\)"),
            warnings.catch_warnings(),
        ):
            keep(tables)
        with pytest.raises(TypeError, match=r"pickle its state_dict\(\), or use save\(\) and load\(\)"):
            keep(torch.nn.Sequential(torch.nn.Linear(2, 2), tables)) if keep is not copy.copy else keep(tables)


def test_configurations_are_pickled() -> None:
    eviction = Eviction(policy="lru")
    table = TableConfig("t", dim=2, optimizer=Adam(lr=1), initializer=Normal(), max_rows=9, eviction=eviction)
    for config in (table, FeatureConfig("f", table="t")):
        assert pickle.loads(pickle.dumps(config)) == config
