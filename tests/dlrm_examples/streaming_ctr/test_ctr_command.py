# SPDX-License-Identifier: Apache-2.0
"""The command line: training, printed and written results, and errors for options that do not fit.

A system is a kind of tables with its options. "smoothed rates" is a baseline that only counts clicks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlrm_examples.streaming_ctr.__main__ import main
from dlrm_examples.streaming_ctr.command_line import make_parser, systems_of
from dlrm_examples.streaming_ctr.data.read_log import read_log
from dlrm_examples.support.data.log import Log

SMALL = ["--dim", "4", "--batch-size", "100", "--history", "5", "--train-examples", "2000"]


def runs_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names_of(log: Log, *arguments: str, started_ranks: int | None = None) -> list[str]:
    """Names of the systems that the arguments select, with ``started_ranks`` ranks started by torchrun (None: none)."""
    options = make_parser(None).parse_args(["--data", "x", *arguments])
    return [system.name for system in systems_of(options, log, started_ranks=started_ranks)]


@pytest.fixture(scope="module")
def log(kuairand_directory: Path) -> Log:
    return read_log(kuairand_directory, max_history=5)


def test_the_command_prints_its_tables_and_writes_a_line_for_each_run(
    kuairand_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "runs.jsonl"
    options = [
        "--seeds",
        "2",
        "--tables",
        "static",
        "dynamic",
        "--epochs",
        "2",
        "--max-rows",
        "70",
        "--eviction",
        "lru",
    ]
    assert main(["--data", str(kuairand_directory), *SMALL, *options, "--out", str(out)]) == 0

    systems = ["static", "dynamic, lru 70 rows"]
    # Parts 0, 2, 4 and 6: quality, differences, contents at the end, rows after each tenth. The others are titles.
    tables = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    first_words = [[line.split("  ")[0] for line in table] for table in tables]
    assert first_words[0][1:] == ["system", "smoothed rates", *systems]
    assert first_words[2] == ["system", *systems[1:]]
    assert first_words[4] == first_words[6] == ["system", *systems]

    runs = runs_of(out)
    assert [(run["name"], run["system"], run["params"]["seed"]) for run in runs] == [
        ("dynamic_ctr", "smoothed rates", None),
        *(("dynamic_ctr", system, seed) for system in systems for seed in range(2)),
    ]
    assert all(run["quality"][label]["auc"] > 0.6 for run in runs[:3] for label in ("is_click", "long_view"))
    assert all(run["commit"] and "cores" in run["machine"] for run in runs)
    dynamic = runs[-1]
    assert (dynamic["params"]["epochs"], dynamic["params"]["max_rows"], dynamic["params"]["eviction"]) == (2, 70, "lru")
    assert dynamic["tables"]["evicted"] > 0
    assert len(dynamic["rows_by_tenth"]) == 10  # Rows after each tenth of the training.
    assert max(dynamic["rows_by_tenth"]) <= 70


def test_ranks_and_a_restart_change_no_result(
    kuairand_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # After 55% of the training, 2 ranks save and end, and 1 rank loads and goes on.
    restart = ["--ranks", "2", "--restart-at", "0.55", "--restart-ranks", "1"]
    for name, options in (("one", []), ("restarted", restart)):
        arguments = ["--data", str(kuairand_directory), *SMALL, "--out", str(tmp_path / name), *options]
        assert main(arguments) == 0

    printed = capsys.readouterr().out
    assert "dynamic, 2 then 1 ranks: 2 ranks saved " in printed
    assert "rows after 1100 examples and ended; 1 others loaded them and went on" in printed
    one, restarted = (runs_of(tmp_path / name)[-1] for name in ("one", "restarted"))
    assert one["rows_by_tenth"] == restarted["rows_by_tenth"]
    assert one["rows_by_tenth"] == sorted(one["rows_by_tenth"])
    assert one["rows_by_tenth"][0] < one["rows_by_tenth"][-1] == restarted["tables"]["rows"]
    for label, quality in one["quality"].items():
        for metric, value in quality.items():
            assert restarted["quality"][label][metric] == pytest.approx(value, abs=1e-3)


def test_the_command_is_one_rank_of_many_under_torchrun(kuairand_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [sys.executable, *launcher, "dlrm_examples.streaming_ctr", "--data", str(kuairand_directory), *SMALL]
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root / 'python'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=100, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("smoothed rates") == 1  # Only one rank reports.
    assert runs_of(out)[-1]["params"]["ranks"] == 2


def test_the_former_name_of_the_module_runs_with_a_warning() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "dlrm_examples.dynamic_ctr", "--help"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'python'}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "DeprecationWarning: dlrm_examples.dynamic_ctr is deprecated" in done.stderr
    assert done.stdout.startswith("usage: python -m dlrm_examples.streaming_ctr")


def test_a_comparison_has_every_kind_of_tables(log: Log) -> None:
    num_ids = sum(len(ids) for ids in log.table_ids().values())
    # A comparison limits tables to 60% and 80% of the different ids of the log.
    few, many = num_ids * 60 // 100, num_ids * 80 // 100
    assert names_of(log, "--compare") == [
        "static",
        "dynamic",
        "dynamic, 2 then 3 ranks",
        f"dynamic, lfu {few} rows",
        f"dynamic, lfu {many} rows",
        f"dynamic, 2 then 3 ranks, lfu {many} rows",
        "dynamic, bfloat16 below 8 look-ups",
    ]


def test_options_are_of_dynamic_tables_alone(log: Log) -> None:
    options = ["--ranks", "3", "--max-rows", "50", "--min-count", "2", "--hot-count", "4"]
    name = "dynamic, 3 ranks, at most 50 rows, rows from look-up 2 on, bfloat16 below 4 look-ups"
    assert names_of(log, "--tables", "dynamic", "static", *options) == [name, "static"]


def test_without_tables_there_are_dynamic_ones_on_the_ranks_that_were_started(log: Log) -> None:
    assert names_of(log) == ["dynamic"]
    assert names_of(log, started_ranks=4) == ["dynamic, 4 ranks"]


@pytest.mark.parametrize(
    ("arguments", "started_ranks", "reason"),
    [
        (["--tables", "static", "--max-rows", "9", "--ranks", "2"], None, "--ranks, --max-rows needs --tables dynamic"),
        (["--compare", "--hot-count", "8"], None, "--compare chooses"),
        (["--compare", "--tables", "static"], None, "--compare chooses"),
        (["--compare"], 2, "leave torchrun out"),
        (["--restart-at", "0.5"], None, "go together"),
        (["--restart-ranks", "2"], None, "go together"),
        (["--restart-at", "1.5", "--restart-ranks", "2"], None, "between 0 and 1, not 1.5"),
        (["--restart-at", "0.5", "--restart-ranks", "2"], 2, "leave torchrun out"),
        (["--tables", "static"], 2, "leave torchrun out"),
        (["--ranks", "3"], 2, "--ranks 3, but 2 were started"),
        (["--eviction", "lfu"], None, "eviction lfu needs max_rows"),
    ],
)
def test_options_that_do_not_fit_are_named(
    log: Log, arguments: list[str], started_ranks: int | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        names_of(log, *arguments, started_ranks=started_ranks)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--train-examples", "3000"], "leave nothing to learn or to test"),
        (["--table-lr", "-1"], "lr"),
        (["--dense-lr", "0"], "dense_lr"),
        (["--max-rows", "5"], "a row for each table, not 5"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    kuairand_directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["--data", str(kuairand_directory), *arguments]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path / "missing")]) == 1
    assert "missing: no such file or directory" in capsys.readouterr().err


def test_parameter_servers_learn_as_tables_of_the_ranks(kuairand_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    modes = ["--mode", "local", "sync", "hybrid", "--staleness", "2", "--exact-order", "--servers", "1"]
    assert main(["--data", str(kuairand_directory), *SMALL, *modes, "--out", str(out)]) == 0
    local, sync, hybrid = runs_of(out)[1:]
    assert (local["system"], sync["system"], hybrid["system"]) == (
        "dynamic",
        "sync, 1 servers",
        "hybrid, staleness 2, exact order, 1 servers",
    )
    assert sync["quality"] == local["quality"] != hybrid["quality"], "without staleness the bits are the same"
    assert sync["rows_by_tenth"] == local["rows_by_tenth"] == hybrid["rows_by_tenth"]
    assert hybrid["tables"]["num_bytes"] > 0


def test_one_rank_without_staleness_learns_the_same_with_the_dense_model_on_servers(
    kuairand_directory: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.jsonl"
    modes = ["--mode", "sync", "async", "--staleness", "0", "--servers", "1"]
    assert main(["--data", str(kuairand_directory), *SMALL, *modes, "--out", str(out)]) == 0
    sync, asynchronous = runs_of(out)[1:]
    assert asynchronous["system"] == "async, staleness 0, 1 servers"
    for label, quality in sync["quality"].items():
        for metric, value in quality.items():
            assert asynchronous["quality"][label][metric] == pytest.approx(value, abs=0.01), (label, metric)


def test_ranks_that_do_not_wait_for_each_other_train_all_examples(kuairand_directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    modes = ["--mode", "async", "--servers", "1", "--ranks", "2"]
    assert main(["--data", str(kuairand_directory), *SMALL, *modes, "--out", str(out)]) == 0
    (asynchronous,) = runs_of(out)[1:]
    assert asynchronous["system"] == "async, staleness 4, 1 servers, 2 ranks"
    assert all(0 <= value <= 1 for quality in asynchronous["quality"].values() for value in quality.values())


def test_options_of_servers_need_a_mode_with_servers(log: Log) -> None:
    for arguments, message in (
        (["--staleness", "2"], "--staleness needs --mode sync, hybrid or async"),
        (["--servers", "2", "--mode", "local"], "--servers needs --mode"),
        (["--mode", "sync", "--restart-at", "0.5", "--restart-ranks", "2"], "--restart-at needs --mode local"),
        (["--mode", "sync", "--tables", "static"], "--mode needs --tables dynamic"),
        (["--mode", "hybrid", "async", "--combine", "none"], "--combine none needs --mode hybrid alone"),
        (["--mode", "async", "--exact-order"], "--exact-order contradicts --mode async"),
        (["--compress", "on"], "--compress needs --mode sync, hybrid or async"),
        (["--mode", "sync", "--sync-rows", "20"], "--sync-rows needs --mode hybrid"),
        (["--mode", "hybrid", "--sync-rows", "20", "--max-rows", "30"], "--sync-rows contradicts --max-rows"),
    ):
        with pytest.raises(ValueError, match=message):
            names_of(log, *arguments)
    assert names_of(log, "--mode", "hybrid") == ["hybrid, staleness 4, 2 servers"]
    assert names_of(log, "--mode", "hybrid", "--compress", "off", "on") == [
        "hybrid, staleness 4, 2 servers",
        "hybrid, staleness 4, 2 servers, compressed",
    ]
    assert names_of(log, "--mode", "sync", "hybrid", "--sync-rows", "0", "20") == [
        "sync, 2 servers",
        "hybrid, staleness 4, 2 servers",
        "hybrid, staleness 4, tables up to 20 rows in step, 2 servers",
    ]
