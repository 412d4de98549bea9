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
    lines = config.toml().splitlines()
    assert "dim = 128" in lines and "# num_layers = 2 (default)" in lines and "# deep = [] (default)" in lines
    of_preset = TrainingConfig.load(path, ["model.preset=grm_110g", "model.dimension_factor=2"]).toml().splitlines()
    assert "# num_layers = 22 (preset grm_110g)" in of_preset and "# embedding_dim = 64 (preset grm_110g)" in of_preset


def test_settings_of_servers_are_printed_where_they_are_used_or_set(path: Path, tmp_path: Path) -> None:
    assert TrainingConfig.load(path).toml().startswith('mode = "local"\n\n[data]\n')
    printed = TrainingConfig.load(path, ["servers.threads=3", "staleness=7"])
    assert "staleness = 7\n" in printed.toml() and "[servers]" in printed.toml() and "[workers]" not in printed.toml()
    (tmp_path / "printed.toml").write_text(printed.toml())
    assert TrainingConfig.load(tmp_path / "printed.toml") == printed
    assert "[workers]" in TrainingConfig.load(path, ["mode=hybrid"]).toml()


def test_folders_of_a_change_are_relative_to_the_current_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = TrainingConfig.load(path, ["data.evaluation=day"])
    assert config.data.train == str(tmp_path / "log/train") and config.data.evaluation == str(here / "day")
    assert TrainingConfig.load(path, ["data.evaluation="]).data.evaluation == ""


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
        ("model.given={click='click'}", "model.given has labels in a circle: click -> click"),
        ("model.dim=-1", "model.dim must be at least 1, not -1"),
        ("model.head_dim=0", "model.head_dim must be at least 1, not 0"),
        ("model.num_layers=0", "model.num_layers must be at least 1, not 0"),
        ("model.embedding_dim=-3", "model.embedding_dim must be at least 1, not -3"),
        ("model.top_k=9", "model.top_k must be from 1 to num_experts, which is 4, not 9"),
        ("model.top_k=0", "model.top_k must be from 1"),
        ("model.deep=[8, -1]", r"model.deep must have numbers from 1, not \[8, -1\]"),
        ("model.dropout=1.0", "model.dropout must be from 0 to below 1, not 1.0"),
        ("model.num_time_buckets=-1", "model.num_time_buckets must be at least 0, not -1"),
        ("model.max_length=1", "model.max_length must be at least 2 for the 1 features of data.context and a target"),
        ("model.tables={itme='a'}", "model.tables has the table 'a' for itme; .* features user, item"),
        ("model.tables={item=''}", "model.tables has the table '' for item"),
        ("run.seed=-1", "run.seed must be a finite number from 0, not -1"),
        (f"run.seed={1 << 63}", "run.seed must be below 2\\^63"),
        ("optimizer.betas=[1.5, 0.9]", r"optimizer.betas must be from 0 to below 1, not \[1.5, 0.9\]"),
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
