# SPDX-License-Identifier: Apache-2.0
"""``headway train``: from generated logs to a checkpoint, in one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from headway.evaluation import auc

from dlrm_examples.grm.generate import write_log
from dlrm_examples.grm.train import main

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "dlrm_examples/grm/generated.toml"


def test_without_a_file_it_trains_on_generated_logs_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path), "--ranks", "2", "--set", "run.log_every=2"]
    assert main([*options, "--set", "run.max_steps=4", "--set", "data.evaluation="]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 ranks on cpu: 8,000 samples, 4 steps of 32"
    assert lines[1].startswith("step 2 of 4, epoch 1 of 2: loss of click 0.") and "trained at step 4" in lines[3]
    assert main([*options, "--set", "run.max_steps=6"]) == 0
    resumed = capsys.readouterr().out
    assert "resumed at step 4 of 6" in resumed and "step_00000006" in resumed
    ends = ["label", "click", "buy", "checkpoint:", "report:"]
    assert [line.split()[0] for line in resumed.splitlines()[-5:]] == ends
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    # Three progress lines, then the quality of each label (click, buy).
    assert [row.get("step") for row in rows] == [2, 4, 6, 6, 6]


def test_a_wrong_setting_or_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[data]\ntrain = 'none'\nevents = ['item']\nlabels = ['click']\n")
    assert main([str(config), "--set", "run.epoch=2"]) == 2
    assert capsys.readouterr().err == (f"headway train: {config}: unknown key run.epoch: did you mean run.epochs?\n")
    assert main([str(config), "--out", str(tmp_path / "out"), "--ranks", "1", "--set", "run.device=cpu"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("headway train: there is no folder")
    assert len(error.splitlines()) == 1
    assert main([str(config), "--ranks", "-1"]) == 2


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ("data.events=['item', 'topic']", 2, "4 ranks share 3 samples of FOLDER/train: use fewer ranks"),
        ("data.events=['item', 'shop']", 1, "FOLDER/train/log.parquet has no column shop; it has"),
        ("data.evaluation=nothing", 1, "there is no folder "),
    ],
)
def test_data_is_checked_before_ranks_start(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    status: int,
    message: str,
) -> None:
    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr("headway.training.command_line.run_ranks", start)
    write_log(tmp_path / "train", num_samples=3, seed=0)
    (tmp_path / "c.toml").write_text(CONFIG.read_text())
    options = ["--out", str(tmp_path / "out"), "--set", "data.evaluation=", "--set", change]
    assert main([str(tmp_path / "c.toml"), *options]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message.replace("FOLDER", str(tmp_path)) in line


def test_a_folder_of_another_training_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, num_samples in (("a", 40), ("b", 50)):
        write_log(tmp_path / name / "train", num_samples=num_samples, seed=0)
        (tmp_path / name / "c.toml").write_text(CONFIG.read_text())
    options = ["--out", str(tmp_path / "out"), "--ranks", "1", "--set", "run.max_steps=1", "--set", "data.evaluation="]
    assert main([str(tmp_path / "a/c.toml"), *options]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "b/c.toml"), *options, "--set", "model.dim=16"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"headway train: {tmp_path}/out/checkpoints/step_00000001 cannot be resumed: model.dim is 16, and was 32; the "
        f"data in {tmp_path}/b/train differs from that of the checkpoint; --resume never trains anew, and moves "
        "earlier results aside; --out chooses another folder"
    )


def test_sigterm_to_the_command_saves_and_ends_with_0(tmp_path: Path) -> None:
    # The command uses the logs in OUT/generated if generated.toml is there, instead of generating 8,000 samples.
    write_log(tmp_path / "generated/train", num_samples=4000, seed=0)
    write_log(tmp_path / "generated/evaluation", num_samples=100, seed=1)
    config = tmp_path / "generated/generated.toml"
    config.write_text(CONFIG.read_text())
    program = "from dlrm_examples.grm.train import main; import sys; sys.exit(main(sys.argv[1:]))"
    arguments = ["--out", str(tmp_path), "--ranks", "2", "--set", "run.log_every=1", "--set", "run.epochs=50"]
    command = [sys.executable, "-u", "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 3 "):
                process.terminate()
        assert process.wait(timeout=60) == 0, lines
    assert any(line.startswith("stopped at step ") for line in lines)
    assert len(list((tmp_path / "checkpoints").glob("*/manifest.json"))) == 1


def test_all_settings_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "generated").exists()
    assert "[optimizer]" in printed and "table_lr = 0.03" in printed and "# preset" not in printed


def test_a_rank_of_torchrun_trains_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    program = "from dlrm_examples.grm.train import main; import sys; sys.exit(main(sys.argv[1:]))"
    arguments = ["--out", str(tmp_path), "--set", "run.max_steps=2", "--set", "data.evaluation=", "--resume", "never"]
    write_log(tmp_path / "generated/train", num_samples=100, seed=0)
    config = tmp_path / "generated/generated.toml"
    config.write_text(CONFIG.read_text())
    finished = subprocess.run(
        [*command, sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=200, check=False, cwd=ROOT,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("trained at step 2") == 1


def test_generated_labels_depend_on_the_history(tmp_path: Path) -> None:
    write_log(tmp_path, num_samples=600, seed=3)
    rows = pq.read_table(tmp_path / "log.parquet").to_pylist()
    best, by_history, clicks = [], [], []
    for row in rows:
        liked = [topic for topic, action in zip(row["topic"], row["action"], strict=True) if action]
        by_history += [liked.count(topic) / max(len(liked), 1) for topic in row["target_topic"]]
        best += row["click_probability"]
        clicks += row["click"]
        assert max(row["time"]) <= min(row["target_time"])
        assert all(buy <= click for buy, click in zip(row["buy"], row["click"], strict=True))
    # The AUC of the true probabilities bounds all models; counting liked topics in the history comes close to it.
    labels = np.array(clicks)
    assert 0.8 < auc(np.array(best), labels) < 0.87
    assert auc(np.array(by_history), labels) > 0.78
    # Click rates of the 400 items in the first half (300 samples with 4 targets) tell nothing about the second half.
    items = np.array([item for row in rows for item in row["target_item"]])
    rates = np.bincount(items[:1200], labels[:1200], 400) / np.maximum(np.bincount(items[:1200], minlength=400), 1)
    assert auc(rates[items[1200:]], labels[1200:]) < 0.55
