# SPDX-License-Identifier: Apache-2.0
"""Settings of a training in TOML: values and defaults that are read, and errors that name the wrong setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headway.training import ConfigError, TrainingConfig
from headway.training.config import differences

FILE = """
[data]
train = "log/train"
context = ["user"]
events = ["item"]
labels = ["click", "buy"]

[model]
dim = 128
given = { buy = "click" }

[optimizer]
lr = 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "grm.toml"
    path.write_text(FILE)
    return path


def test_a_file_has_values_and_defaults(path: Path) -> None:
    config = TrainingConfig.load(path)
    assert config.data.train == str(path.parent / "log/train")
    assert config.data.labels == ("click", "buy") and config.data.global_batch == 64
    assert config.model.grm().dim == 128 and config.model.grm().num_layers == 2
    assert config.model.grm().given == {"buy": "click"}
    assert config.optimizer.lr == 1.0 and isinstance(config.optimizer.lr, float)
    assert config.data.schema().time == "time" and config.data.schema().group is None


def test_all_settings_are_printed_as_a_file_that_can_be_read(path: Path, tmp_path: Path) -> None:
    config = TrainingConfig.load(path, ["model.top_k=1", "data.group=user"])
    printed = tmp_path / "printed.toml"
    printed.write_text(config.toml())
    assert TrainingConfig.load(printed) == config
    assert "# dim is not set" not in config.toml() and "# num_layers is not set" in config.toml()


def test_changes_replace_values_of_the_file(path: Path) -> None:
    changes = ["optimizer.lr=0.5", "model.preset=grm_4g", "data.labels=['like']", "model.given={}", "run.epochs = 3"]
    config = TrainingConfig.load(path, changes)
    assert config.optimizer.lr == 0.5 and config.run.epochs == 3 and config.data.labels == ("like",)
    assert config.model.grm().num_layers == 3 and config.model.grm().dim == 128  # Preset, and file.


def test_the_dimension_factor_multiplies_the_embedding_dim(path: Path) -> None:
    """The preset has embeddings of 64 columns."""
    changes = ["model.preset=grm_110g", "model.dimension_factor=8"]
    assert TrainingConfig.load(path, changes).model.grm().embedding_dim == 8 * 64


@pytest.mark.parametrize("name", ["adam", "row_wise_adam", "adagrad", "row_wise_adagrad", "sgd"])
def test_tables_have_the_optimizer_of_the_file(path: Path, name: str) -> None:
    config = TrainingConfig.load(path, [f"optimizer.table_optimizer={name}", "optimizer.table_lr=0.25"])
    optimizer = config.optimizer.of_tables()
    assert optimizer.lr == 0.25 and type(optimizer).__name__.lower() == name.replace("_", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.num_layer=3", r"unknown key model.num_layer: did you mean model.num_layers\?"),
        ("checkpoints.folder=x", "checkpoints.folder is for scripts of headway.hybrid: use --out"),
        ("checkpoints.keep=9", "checkpoints.keep is for scripts of headway.hybrid: use checkpoint.keep"),
        ("modle.dim=3", r"unknown key modle: did you mean model\?"),
        ("run.xyzzy=3", "unknown key run.xyzzy; there are epochs, max_steps"),
        ("model.dim=big", "model.dim must be int, not 'big'"),
        ("model.dim=true", "model.dim must be int, not True"),
        ("data.events=item", "data.events must be a list, not 'item'"),
        ("data.events=[]", r"\[data\]: events needs at least one feature"),
        ("data.group=shop", r"\[data\]: group shop is none of the context features user"),
        ("data.order=random", "data.order must be one of 'shuffled', 'time', not 'random'"),
        ("optimizer.betas=[0.9]", "optimizer.betas has 2 values, not 1"),
        ("optimizer.lr=inf", "optimizer.lr must be a finite number from 0, not inf"),
        ("optimizer.clip_norm=-1", "optimizer.clip_norm must be a finite number from 0, not -1"),
        ("run.epochs=0", "run.epochs must be a finite number from 1, not 0"),
        ("model.preset=grm_1g", r"\[model\]: there is no preset grm_1g, only grm_4g, grm_110g"),
        ("model.given.buy.x=1", "model.given.buy.x: buy is a value, not a section"),
        ("model.given.buy=like", "model.given names like, which is none of the labels click, buy"),
        ("optimizer", "a change of a setting is NAME.NAME=VALUE, not 'optimizer'"),
    ],
)
def test_a_wrong_setting_is_named(path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.load(path, [change])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        TrainingConfig.load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[data")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        TrainingConfig.load(broken)
    broken.write_text("[data]\nevents = ['item']\nlabels = ['click']\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: data\.train is missing"):
        TrainingConfig.load(broken)


def test_differences_name_both_values() -> None:
    one: dict[str, Any] = {"model": {"dim": 32, "given": {}}, "run": {"seed": 1}}
    other: dict[str, Any] = {"model": {"dim": 64, "given": {}}, "run": {"seed": 2}}
    (found,) = differences(one, other, sections=["model"])
    assert found == ("model.dim", 32, 64) and str(found) == "model.dim is 64, and was 32"
    assert found.between("rank 0", "rank 2") == "model.dim is 64 at rank 2, and 32 at rank 0"
    (unset,) = differences({"data": {"global_batch": 4}}, {"data": {}}, sections=["data"])
    assert str(unset) == "data.global_batch is not set, and was 4"


@pytest.mark.parametrize("text", ["5", "5:5", "a:b", ":3", "3:", "-1:4"])
def test_wrong_steps_of_a_trace_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.training.command_line import main

    config = Path(__file__).parents[3] / "dlrm_examples" / "grm" / "kuairand.toml"
    assert main([str(config), f"--trace={text}"]) == 2
    assert "--trace is A:B with A below B" in capsys.readouterr().err
