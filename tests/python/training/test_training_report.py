# SPDX-License-Identifier: Apache-2.0
"""report.html, the page that a training writes at its end, and results.jsonl, from which it is made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from headway.training import ConfigError, Trainer
from headway.training.report import read_results
from training_cases import make_config, make_folder


def write_rows(path: Path, *steps: int, tail: str = "") -> Path:
    rows = [{"kind": "progress", "step": step, "losses": {"click": 1 / step}} for step in steps]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ((10, 20, 30), [10, 20, 30]),
        ((10, 20, 30, 20, 30, 40), [10, 20, 30, 40]),
        ((10, 20, 30, 15, 25), [10, 15, 25]),
        ((10, 20, 10), [10]),
    ],
)
def test_lines_of_a_resumed_training_replace_those_of_the_same_steps(
    tmp_path: Path, steps: tuple[int, ...], kept: list[int]
) -> None:
    results = read_results(write_rows(tmp_path / "results.jsonl", *steps))
    assert [row["step"] for row in results.progress] == kept


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    results = read_results(write_rows(tmp_path / "results.jsonl", 10, 20, tail='{"kind": "prog'))
    assert [row["step"] for row in results.progress] == [10, 20]


def test_a_line_is_json_though_a_number_is_not_finite(tmp_path: Path) -> None:
    trainer = Trainer(make_config(make_folder(tmp_path / "log")), out=tmp_path / "out", say=lambda line: None)
    trainer._write({"kind": "quality", "auc": float("nan"), "losses": {"click": float("inf")}, "targets": 3})
    line = (tmp_path / "out/results.jsonl").read_text()
    assert line == '{"kind": "quality", "auc": null, "losses": {"click": null}, "targets": 3}\n'


def test_the_page_has_plots_quality_and_settings(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(folder, data={"evaluation": str(folder)}, run={"log_every": 2, "epochs": 1})
    lines: list[str] = []
    result = Trainer(config, out=tmp_path / "out", say=lines.append).run()
    assert result.report == tmp_path / "out" / "report.html"
    page = result.report.read_text()
    assert "Step 4 of 4 on 1 rank, cpu" in page
    assert "data:image/png;base64," in page
    assert f"{result.quality['buy'].auc:.4f}" in page
    assert "global_batch = 16" in page


def test_a_training_succeeds_without_the_packages_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    config = make_config(make_folder(tmp_path / "log", targets=2), run={"max_steps": 1})
    lines: list[str] = []
    result = Trainer(config, out=tmp_path / "out", say=lines.append).run()
    assert result.report is None and result.checkpoint is not None
    assert any(line.startswith("no report:") and "jinja2" in line for line in lines)


def test_tensorboard_gets_the_figures_of_each_line(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = make_folder(tmp_path / "log", targets=2)
    config = make_config(
        folder,
        data={"evaluation": str(folder)},
        run={"log_every": 1, "epochs": 1, "max_steps": 3, "tensorboard": True},
    )
    out = tmp_path / "out"
    result = Trainer(config, out=out, say=lambda line: None).run()
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/click")] == [1, 2, 3]
    results = read_results(out / "results.jsonl")
    assert events.Scalars("loss/buy")[-1].value == pytest.approx(results.progress[-1]["losses"]["buy"])
    assert events.Scalars("click/auc")[0].value == pytest.approx(result.quality["click"].auc)
    with pytest.raises(ConfigError, match=r"run\.tensorboard needs a folder"):
        Trainer(config)


def test_a_missing_tensorboard_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    config = make_config(make_folder(tmp_path / "log"), run={"tensorboard": True})
    with pytest.raises(ConfigError, match=r"needs the package tensorboard: pip install 'headway\[train\]'"):
        Trainer(config, out=tmp_path / "out")
