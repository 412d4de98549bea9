# SPDX-License-Identifier: Apache-2.0
"""``headway hybrid``: a job of one host runs, ends, and names the role that it has lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from headway.cli.hybrid import _ErrorOutput, _run, main
from headway.hybrid import HybridConfig
from headway.training import TrainingConfig
from other_processes import wait_until_ended
from parameter_servers import SECRET, parameter_servers
from parquet_samples import SCHEMA, make_rows, write_folder

from benchmarks.harness.served_dlrm import free_ports

SCRIPT = """
import sys, time
import torch
from headway import hybrid
from headway.embedding import FeatureConfig, Sgd, TableConfig

if "RANK" in __import__("os").environ:
    torch.distributed.init_process_group("headway")
TABLES = [TableConfig("item", dim=4, optimizer=Sgd(lr=1.0))]
FEATURES = [FeatureConfig("item", table="item", pooling="sum")]
tables = hybrid.connect(sys.argv[1], tables=TABLES, features=FEATURES)
ids = (torch.tensor([1, 2, 3]), torch.tensor([2, 1]))
source = (hybrid.Batch({"item": ids}, torch.zeros(2, 1), torch.zeros(2)) for _ in range(int(sys.argv[2])))
for batch in hybrid.batches(tables, source):
    tables(batch.features)["item"].sum().backward()
    tables.optimizer.step()
    time.sleep(0.01)
print("rows", tables.status()[0].rows, "steps", tables.step, flush=True)
"""


def job(folder: Path, num_servers: int = 2) -> tuple[Path, Path, list[str]]:
    """Writes a configuration and a script; returns both and the addresses."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(num_servers)]
    config, script = folder / "job.toml", folder / "train.py"
    config.write_text(f'mode = "hybrid"\nstaleness = 2\n[job]\ntimeout_s = 20.0\n[servers]\naddresses = {addresses}\n')
    script.write_text(SCRIPT)
    return config, script, addresses


def start(config: Path, script: Path, steps: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headway_launcher", "hybrid", "run", str(config), *options, "--", str(script),
               str(config), str(steps)]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def children_of(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """Waits until a process has so many children."""
    deadline = time.monotonic() + 60
    while len(children := psutil.Process(process.pid).children()) < count:
        assert process.poll() is None and time.monotonic() < deadline, children
        time.sleep(0.1)
    return children


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_of_one_host_runs_to_its_end(tmp_path: Path, workers: int) -> None:
    config, script, _ = job(tmp_path)
    out, err = start(config, script, 5, "--workers", str(workers)).communicate(timeout=120)
    assert out.count("steps 5") == workers, err


def write_training(config: Path) -> None:
    """Writes a log, and adds the sections of ``headway train`` to a configuration. An epoch has 4 steps."""
    write_folder(config.parent / "log", make_rows(32), files=1)
    names = {name: list(getattr(SCHEMA, name)) for name in ("context", "events", "actions", "labels")}
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in names.items())
    model = "dim = 16\nhead_dim = 8\nembedding_dim = 4\nmax_length = 16\n"
    config.write_text(
        f'{config.read_text()}[data]\ntrain = "log"\nevaluation = "log"\nglobal_batch = 8\nnum_streams = 4\n{settings}'
        f'[model]\n{model}[run]\ndevice = "cpu"\n'
    )


def test_without_a_script_it_trains_by_the_same_file(tmp_path: Path) -> None:
    config, _, _ = job(tmp_path)
    assert HybridConfig.load(config).mode == "hybrid"
    write_training(config)
    command = [sys.executable, "-m", "headway_launcher", "hybrid", "run", str(config), "--workers", "2", "--"]
    command += ["--out", str(tmp_path / "out"), "--set", "run.epochs=2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert "2 ranks on cpu: 32 samples, 8 steps of 8" in ended.stdout and "trained at step 8" in ended.stdout
    assert "staleness" in ended.stdout and "is lost" not in ended.stderr
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert kinds == ["progress", "quality", "quality"]
    page = (tmp_path / "out/report.html").read_text()
    assert "waits for parameter servers" in page and "steps whose updates lookups lacked" in page
    config.write_text(config.read_text().replace('mode = "hybrid"\n', ""))
    assert HybridConfig.load(config).mode == TrainingConfig.load(config).mode == "local"


def test_a_training_goes_on_from_its_checkpoint_after_the_loss_of_a_server(tmp_path: Path) -> None:
    config, _, addresses = job(tmp_path)
    write_training(config)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "headway_launcher", "hybrid", "run", str(config), "--", "--out", str(out)]
    command += ["--set", "run.epochs=100", "--set", "checkpoint.every=20"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    children = children_of(process, 3)
    (server,) = (each for each in children if any(addresses[1] in word for word in each.cmdline()))
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/step_*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    server.send_signal(signal.SIGKILL)
    printed, errors = process.communicate(timeout=200)
    assert process.returncode == 0, (printed, errors)
    assert f"parameter server 1 at {addresses[1]} ended" in errors and "all roles start again, from" in errors
    assert "resumed at step" in printed and "trained at step 400" in printed


@pytest.mark.parametrize(("status", "restarts"), [(1, 1), (2, 0)])
def test_wrong_settings_are_not_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, restarts: int
) -> None:
    (tmp_path / "step_00000001").mkdir()
    (tmp_path / "step_00000001/manifest.json").touch()
    config = HybridConfig.of({"mode": "local", "checkpoints": {"folder": str(tmp_path), "max_restarts": 1}})
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert _run(config, [sys.executable, "-c", f"raise SystemExit({status})"]) == status
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err.count("all roles start again") == restarts


def test_a_killed_server_ends_the_job_and_is_named(tmp_path: Path) -> None:
    config, script, addresses = job(tmp_path)
    process = start(config, script, 100_000)
    children = children_of(process, 3)
    (server,) = (each for each in children if any(addresses[1] in word for word in each.cmdline()))
    time.sleep(5.0)  # Training has begun by then, or has not: the server is named either way.
    server.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (out, err)
    assert f"parameter server 1 at {addresses[1]}" in err
    assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_sigterm_ends_all_roles(tmp_path: Path) -> None:
    config, script, _ = job(tmp_path)
    process = start(config, script, 100_000)
    children = children_of(process, 3)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_roles_end_with_a_killed_command(tmp_path: Path) -> None:
    config, script, _ = job(tmp_path)
    process = start(config, script, 100_000)
    children = [each.pid for each in children_of(process, 3)]
    process.kill()
    process.communicate(timeout=60)
    wait_until_ended(children)


def test_status_shows_each_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "job.toml"
    with parameter_servers(2) as addresses:
        config.write_text(f"[servers]\naddresses = {list(addresses)}\n")
        assert main(["status", str(config), "--json", "--interval", "0"]) == 0
        states = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(each["server"], each["address"], each["generation"]) for each in states] == [
            (0, addresses[0], 0), (1, addresses[1], 0)
        ]  # fmt: skip
        assert main(["status", str(config), "--interval", "0"]) == 0
        assert "num_applied: 0" in capsys.readouterr().out


def test_wrong_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "job.toml"
    config.write_text("stalenes = 1\n")
    for arguments, message in (
        (["run", str(config), "--", "x.py"], "did you mean staleness"),
        (["ps", str(tmp_path / "none.toml"), "--index", "0"], "No such file"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    config.write_text("")
    for arguments, message in (
        (["ps", str(config), "--index", "1"], "--index must be from 0 to 0, not 1"),
        (["run", str(config)], "run needs a script"),
        (["run", str(config), "--workers", "0", "--", "x.py"], "--workers must be from 1"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_a_killed_embedding_worker_is_named(tmp_path: Path) -> None:
    config, script, _ = job(tmp_path)
    (port,) = free_ports(1)
    config.write_text(config.read_text() + f'[workers]\naddresses = ["127.0.0.1:{port}"]\n')
    text = script.read_text()
    loader = "loader = hybrid.Loader(hybrid.HybridConfig.load(sys.argv[1]), tables=TABLES, features=FEATURES)"
    text = text.replace("source = (", f"{loader}\nsource = (").replace('{"item": ids}', 'loader.submit({"item": ids})')
    script.write_text(text)
    process = start(config, script, 100_000)
    (worker,) = (each for each in children_of(process, 4) if "--servers" in each.cmdline())
    time.sleep(5.0)
    assert process.poll() is None
    worker.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (out, err)
    assert f"embedding worker 0 at 127.0.0.1:{port}" in err


def test_a_server_alone_needs_the_secret_and_listens(tmp_path: Path) -> None:
    config, _, addresses = job(tmp_path, num_servers=1)
    command = [sys.executable, "-m", "headway_launcher", "hybrid", "ps", str(config), "--index", "0"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_GROUP_SECRET")}
    refused = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert refused.returncode == 2 and "needs the secret of the job" in refused.stderr
    environ["HEADWAY_GROUP_SECRET"] = SECRET
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"listening at {addresses[0]}\n"
        server.terminate()
        assert server.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "DataLoader worker (pid 7) is"),
        ("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", "DataLoader worker (pid(s) 7) exited"),
        ('  File "/lib/torch/utils/data/dataloader.py", line 1293, in _try_get_data\n'
         '  File "/lib/multiprocessing/resource_sharer.py", line 86, in get_connection\n'
         "ConnectionResetError: [Errno 104] Connection reset by peer", "ConnectionResetError: [Errno 104] Connection"),
        ('  File "/lib/multiprocessing/resource_sharer.py", line 138, in _serve\nEOFError', None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", None),
        ("RuntimeError: the model is wrong", None),
    ],
)  # fmt: skip
def test_a_lost_loader_is_told_from_other_errors(
    error: str, named: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('Traceback (most recent call last):', sys.argv[1], sep='\\n', file=sys.stderr)"
    with subprocess.Popen([sys.executable, "-c", program, error], stderr=subprocess.PIPE) as process:
        found = _ErrorOutput(process).lost_loader()
    assert found.startswith(f"a loader of the dense workers ended ({named}") if named else found == ""
    assert error in capfd.readouterr().err, "the errors are passed on"
