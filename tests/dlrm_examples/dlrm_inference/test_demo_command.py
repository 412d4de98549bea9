# SPDX-License-Identifier: Apache-2.0
"""The demo from the command line: output, failures, and leftovers.

System ``sync`` is synchronous DLRM. ``bls-gloo`` and others are bounded-lag synchronous DLRM over that backend.
``--lag`` lists the bounds: how many exchanges a rank may run ahead of the slowest peer. A store is the folder of
converted logs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from other_processes import wait_until_ended
from rank_processes import BACKENDS

from dlrm_examples.dlrm_inference import demo, grid
from dlrm_examples.dlrm_inference.generate import write_criteo_log

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["--ranks", "2", "--steps", "6", "--runs", "2", "--mini-batch", "8", "--max-rows-per-table", "500"]


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'python'}"}
    return subprocess.Popen(
        [sys.executable, "-m", f"dlrm_examples.dlrm_inference.{module}", *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(module: str, *arguments: str) -> tuple[int, str, str]:
    process = start(module, *arguments)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def rows_in(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_installed_command_runs_the_demo_on_a_machine_that_has_no_converted_log(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "headway"
    if not command.exists():
        pytest.skip("the headway command is not installed beside this Python")
    finished = subprocess.run(
        [command, "demo", *SMALL, "--systems", "sync", "--out", tmp_path / "out", "--store", tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out/report.html").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_demo_writes_a_table_rows_plots_and_a_self_contained_report(tmp_path: Path, backend: str) -> None:
    write_criteo_log(tmp_path / "log.tsv", num_rows=60)
    with (tmp_path / "log.tsv").open("a") as stream:
        stream.write("broken\n")
    system = f"bls-{backend}"
    out = tmp_path / "out"

    status, printed, errors = run(
        "demo", *SMALL, "--lag", "0", "2", "--systems", "sync", system,
        "--data", str(tmp_path / "log.tsv"), "--out", str(out), "--store", str(tmp_path / "store"),
    )  # fmt: skip

    assert status == 0, errors
    rows = rows_in(out / "results.jsonl")
    assert [(row["system"], row["params"]["lag"]) for row in rows] == [("sync", 0), (system, 0), (system, 2)]
    assert all(row["predictions_identical"] for row in rows)
    assert all(row["samples"] == 4 for row in rows)  # Two runs of two ranks.
    assert all(row["params"]["setting"] == "random_delays" for row in rows)
    assert "log.tsv:61: 1 tab-separated fields, expected 40" in errors
    assert "60 rows" in errors, "says that rows are used repeatedly"
    assert system in printed
    report = (out / "report.html").read_text()
    assert "data:image/png;base64," in report
    assert "src='http" not in report
    assert "log.tsv:61" in report
    assert (out / "random_delays_criteo.png").read_bytes().startswith(b"\x89PNG")
    assert ("Who waited for whom" in report) == (backend == "headway")
    if backend == "headway":
        assert set(rows[1]["stats"]) == {"0", "1"}


def test_the_grid_runs_every_setting_on_both_datasets(tmp_path: Path) -> None:
    status, _, errors = run(
        "grid", *SMALL, "--lag", "0", "1", "--systems", "sync", "bls-gloo",
        "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store"), "--json", str(tmp_path / "rows.jsonl"),
    )  # fmt: skip

    assert status == 0, errors
    rows = rows_in(tmp_path / "rows.jsonl")
    assert rows == rows_in(tmp_path / "out" / "results.jsonl")
    conditions = [(row["params"]["setting"], row["params"]["dataset"]) for row in rows[::3]]  # Three rows each.
    assert conditions == [
        ("random_delays", "criteo"),
        ("short_delays", "criteo"),
        ("heterogeneous", "random"),
        ("heterogeneous_messages", "random"),
        ("straggler", "criteo"),
        ("balanced", "criteo"),
        ("balanced", "ali_ccp"),
    ]
    assert all(row["predictions_identical"] for row in rows)
    by_condition = {(row["params"]["setting"], row["params"]["lag"]): row for row in rows}
    # "heterogeneous_messages" sends all rows of a bag, the ids of one sample in a table, instead of their sum.
    pooled = by_condition["heterogeneous", 0]["params"]["bytes_per_rank"]
    assert by_condition["heterogeneous_messages", 0]["params"]["bytes_per_rank"] > 10 * pooled


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lag", "-1"], "argument --lag: must be at least 0, not -1"),
        (["--lag", "two"], "argument --lag: 'two' is not an integer"),
        (["--ranks", "0"], "argument --ranks: must be at least 1, not 0"),
        (["--systems", "mpi"], "argument --systems: invalid choice: 'mpi'"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--setting", "heterogeneous", "--data", "x"], "--data has no use with --setting heterogeneous"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main([*arguments, "--out", str(tmp_path)] + (["--systems", "sync"] if "--data" in arguments else []))
    assert stopped.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("program", [demo, grid])
def test_data_that_is_not_there_is_one_clear_line(
    program: object, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "nothing.tsv"
    arguments = ["--systems", "sync", "--data", str(missing), "--out", str(tmp_path)]
    assert program.main(arguments) == 1  # type: ignore[attr-defined]
    errors = capsys.readouterr().err
    assert f"{missing}: no such file or directory" in errors
    assert len(errors.splitlines()) == 1


def test_an_output_directory_that_cannot_be_made_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert demo.main(["--systems", "sync", "--out", str(tmp_path / "file" / "out")]) == 1
    assert "cannot make this directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda", "--ranks", "500"], "--device cuda needs a GPU for each of 500 ranks, and this host has"),
        (["--systems", "bls-nccl"], "bls-nccl does not run on cpu: choose from sync, bls-gloo, bls-headway"),
    ],
)
def test_a_device_that_cannot_be_had_is_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert demo.main([*arguments, "--out", str(tmp_path / "out")]) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_malformed_line_stops_a_strict_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("broken\n")
    arguments = [*SMALL, "--systems", "sync", "--data", str(tmp_path / "log.tsv"), "--strict"]
    assert demo.main([*arguments, "--out", str(tmp_path), "--store", str(tmp_path / "store")]) == 1
    assert "log.tsv:1: 1 tab-separated fields" in capsys.readouterr().err


def test_the_help_names_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--help"])
    printed = capsys.readouterr().out
    for word in ("random_delays", "straggler", "--data", "examples:"):
        assert word in printed


@pytest.fixture
def measuring_demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Starts a demo with two ranks that keep measuring for a while. Yields the program and the pids of its ranks."""
    arguments = ["--ranks", "2", "--steps", "200", "--runs", "50", "--systems", "sync", "--mini-batch", "8"]
    arguments += ["--max-rows-per-table", "9", "--out", str(tmp_path), "--store", str(tmp_path / "store")]
    process = start("demo", *arguments)
    try:
        assert process.stderr is not None
        shown = ""
        while "sync k=0" not in shown:
            character = process.stderr.read(1)
            assert character, f"the demo ended: {shown}"
            shown += character
        # One of its children forks the ranks.
        ranks = [child.pid for each in psutil.Process(process.pid).children() for child in each.children()]
        assert len(ranks) == 2
        yield process, ranks
    finally:
        process.kill()
        process.communicate()


def test_ranks_die_with_the_program_that_started_them(
    measuring_demo: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, ranks = measuring_demo
    process.kill()
    wait_until_ended(ranks)


def test_the_loss_of_a_rank_ends_the_demo_with_one_line_that_names_it(
    measuring_demo: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, ranks = measuring_demo
    os.kill(max(ranks), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.splitlines()[-1].endswith("demo: rank 1 was killed by SIGKILL")
    assert "Traceback" not in errors
    wait_until_ended(ranks)


def test_an_interrupt_ends_the_demo_and_its_ranks(measuring_demo: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, ranks = measuring_demo
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_until_ended(ranks)


def test_a_grid_that_is_stopped_keeps_the_settings_it_has_finished(tmp_path: Path) -> None:
    process = start(
        "grid", "--ranks", "2", "--steps", "600", "--runs", "2", "--mini-batch", "8", "--max-rows-per-table", "500",
        "--lag", "0", "--systems", "sync", "--settings", "heterogeneous", "straggler",
        "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store"),
    )  # fmt: skip
    progress = ""
    while "2/4" not in progress and process.poll() is None:
        progress += process.stderr.read(1)
    time.sleep(0.5)  # Waits for the report of the other rank. Each run with the straggler takes 3 s.
    process.terminate()
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 130, progress + errors
    assert [row["params"]["setting"] for row in rows_in(tmp_path / "out" / "results.jsonl")] == ["heterogeneous"]
