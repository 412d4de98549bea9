# SPDX-License-Identifier: Apache-2.0
"""The commands of examples/hybrid, run on this host: only addresses and paths are replaced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.harness.served_dlrm import free_ports

EXAMPLES = Path(__file__).parents[3] / "examples" / "hybrid"
SCRIPT = """
import sys
import torch
from headway import hybrid
from headway.embedding import FeatureConfig, Sgd, TableConfig

torch.distributed.init_process_group("headway")
TABLES = [TableConfig("item", dim=4, optimizer=Sgd(lr=1.0))]
FEATURES = [FeatureConfig("item", table="item", pooling="sum")]
tables = hybrid.connect(sys.argv[1], tables=TABLES, features=FEATURES)
loader = hybrid.Loader(sys.argv[1], tables=TABLES, features=FEATURES)
ids = {"item": (torch.tensor([1, 2, 3]), torch.tensor([2, 1]))}
source = (hybrid.Batch(loader.submit(ids), torch.zeros(2, 1), torch.zeros(2)) for _ in range(5))
for batch in hybrid.batches(tables, source):
    tables(batch.features)["item"].sum().backward()
    tables.optimizer.step()
counts = tables.counts()
rows = sum(each.rows for each in tables.status())
print("rank", torch.distributed.get_rank(), "trained", counts.trained, "rows", rows, flush=True)
"""
PYTHON_PATH = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with the commands of an installed Headway, and a script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("headway", "headway_launcher"), ("torchrun", "torch.distributed.run")):
        _add_program(programs / name, f'exec {sys.executable} -m {module} "$@"\n')
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": PYTHON_PATH,
            "OMP_NUM_THREADS": "1"}  # fmt: skip


def _add_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


@contextmanager
def _running(commands: list[list[str]], environs: list[dict[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        processes = []
        for command, environ in zip(commands, environs, strict=True):
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, env=environ, text=True, **streams)
            stack.callback(process.communicate, timeout=60)
            stack.callback(process.terminate)
            processes.append(process)
        yield processes


def _with_name(environ: dict[str, str], folder: Path, name: str, addresses: list[str]) -> dict[str, str]:
    """Returns an environment in which Python resolves a name to addresses, as a DNS server would."""
    (folder / "lib").mkdir()
    (folder / "lib" / "sitecustomize.py").write_text(f"""
import socket
_plain = socket.getaddrinfo
def _resolve(host, port, *arguments, **options):
    if host != {name!r}:
        return _plain(host, port, *arguments, **options)
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in {addresses!r}]
socket.getaddrinfo = _resolve
""")
    return {**environ, "PYTHONPATH": f"{folder / 'lib'}:{environ['PYTHONPATH']}"}


def _expect_training(out: str) -> None:
    for rank in range(2):
        assert f"rank {rank} trained 5 rows 3" in out, out


def test_the_commands_for_kubernetes_train(tmp_path: Path, environ: dict[str, str]) -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text()
    ports = dict(zip(("7000", "7100", "9400", "29500"), free_ports(4), strict=True))
    config = re.search(r"^  ctr\.toml: \|\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    assert config is not None
    toml = re.sub(r"^    ", "", config[1], flags=re.MULTILINE)

    def on_this_host(part: str, index: int) -> str:
        part = re.sub(r"ctr-(ps|worker|dense)-(\d)\.ctr-\1", lambda each: f"127.0.{_ROLES[each[1]]}.{each[2]}", part)
        part = part.replace("0.0.0.0", f"127.0.{_ROLES[role]}.{index}")
        for port, free in ports.items():
            part = re.sub(rf"\b{port}\b", str(free), part)
        return part.replace("/etc/headway", str(tmp_path)).replace("/job/", f"{tmp_path}/")

    environ = _with_name(environ, tmp_path, "ctr-worker", ["127.0.2.0", "127.0.2.1"])
    commands, environs = [], []
    for kind, role in (("StatefulSet", "ps"), ("Deployment", "worker"), ("Job", "dense")):
        start = f"\nkind: {kind}\nmetadata: {{name: ctr-{role}}}\n"
        (document,) = (each for each in text.split("\n---\n") if start in each)
        (replicas,) = re.findall(r"^  (?:replicas|completions): (\d+)$", document, re.MULTILINE)
        (command,) = re.findall(r"^ +command: (\[.*\])$", document, re.MULTILINE)
        for index in range(int(replicas)):
            commands.append([on_this_host(word, index) for word in json.loads(command)])
            environs.append({**environ, "HOSTNAME": f"ctr-{role}-{index}", "JOB_COMPLETION_INDEX": str(index),
                             "HEADWAY_GROUP_SECRET": "secret of the tests"})  # fmt: skip
        (tmp_path / "ctr.toml").write_text(on_this_host(toml, 0))
    assert len(commands) == 6
    with _running(commands, environs) as processes:
        out = "".join(each.communicate(timeout=120)[0] for each in processes[-2:])
        assert [each.returncode for each in processes[-2:]] == [0, 0], out
    _expect_training(out)


#: Third number of the loopback addresses of a role.
_ROLES = {"ps": 1, "worker": 2, "dense": 3}

SRUN = """
group=${1#--het-group=}
shift
tasks=(2 1 2)
for ((i = 0; i < tasks[group]; i++)); do
  SLURM_NNODES=${tasks[group]} SLURM_PROCID=$i "${@//0.0.0.0/127.0.$((group + 1)).$i}" &
done
trap 'kill $(jobs -p)' TERM
status=0
for job in $(jobs -p); do wait "$job" || status=$?; done
exit "$status"
"""


def _slurm_job(tmp_path: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs the batch script with stand-ins of srun and scontrol, which start all tasks here."""
    script = (EXAMPLES / "slurm.sh").read_text()
    for port, free in zip(("7000", "7100", "29500"), free_ports(3), strict=True):
        script = re.sub(rf"\b{port}\b", str(free), script)
    (tmp_path / "job.sh").write_text(script)
    _add_program(tmp_path / "bin" / "srun", SRUN)
    _add_program(tmp_path / "bin" / "scontrol", 'tr , "\\n" <<< "$3"\n')
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST_HET_GROUP_0": "127.0.1.0,127.0.1.1",
                 "SLURM_JOB_NODELIST_HET_GROUP_1": "127.0.2.0",
                 "SLURM_JOB_NODELIST_HET_GROUP_2": "127.0.3.0,127.0.3.1"}  # fmt: skip
    command = ["bash", "job.sh", str(tmp_path / "train.py")]
    return subprocess.run(
        command, cwd=tmp_path, env={**environ, **variables}, capture_output=True, text=True, timeout=150
    )


def test_the_script_for_slurm_trains_and_ends_its_servers(tmp_path: Path, environ: dict[str, str]) -> None:
    done = _slurm_job(tmp_path, environ)
    assert done.returncode == 0, done.stdout + done.stderr
    _expect_training(done.stdout)
    assert not (tmp_path / "ctr-7.secret").exists()


def test_a_failed_script_fails_the_job_of_slurm(tmp_path: Path, environ: dict[str, str]) -> None:
    _add_program(tmp_path / "bin" / "torchrun", "exit 3\n")
    done = _slurm_job(tmp_path, environ)
    assert done.returncode != 0
