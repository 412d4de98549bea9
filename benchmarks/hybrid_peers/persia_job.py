# SPDX-License-Identifier: Apache-2.0
"""Runs a job of Persia on this host: a loader, an embedding worker, a parameter server and a dense worker.

Persia is not a part of Headway, and no environment of it is made here: the caller names an interpreter that has it
(docs/hybrid.md says how). ``nats-server`` carries the messages by which its roles find each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.served_dlrm import free_ports

_ROOT = Path(__file__).resolve().parents[2]
_MODULE = "benchmarks.hybrid_peers.persia_role"
_FIND = "import os, persia; print(os.path.dirname(persia.__file__))"
_IMPORT_S, _STOP_S = 300, 20
_SERVER, _WORKER = "persia-embedding-parameter-server", "persia-embedding-worker"


def find_persia(python: Path) -> Path:
    """Returns the folder of the package ``persia``, which has the programs of its servers.

    Raises:
        BenchmarkError: the interpreter or Persia is not there, or ``nats-server`` is not.
    """
    if not python.is_file():
        raise BenchmarkError(f"--persia-python {python}: there is no such file")
    if shutil.which("nats-server") is None:
        raise BenchmarkError("--persia-python needs nats-server: apt install nats-server")
    try:
        ended = subprocess.run(
            [str(python), "-c", _FIND], capture_output=True, text=True, timeout=_IMPORT_S, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"--persia-python {python}: importing persia took over {_IMPORT_S} s") from None
    if ended.returncode != 0:
        reason = ended.stderr.strip().rpartition("\n")[2]
        raise BenchmarkError(f"--persia-python {python} cannot import persia: {reason} (docs/hybrid.md says how)")
    folder = Path(ended.stdout.strip().rpartition("\n")[2])
    for program in (_SERVER, _WORKER):
        if not os.access(folder / program, os.X_OK):
            raise BenchmarkError(f"--persia-python {python}: {folder / program} is not a program")
    return folder


def run_persia(python: Path, folder: Path, settings: Mapping[str, Any], *, time_limit_s: float) -> dict[str, Any]:
    """Runs the job to its end; returns what the dense worker printed.

    Args:
        python: interpreter with Persia.
        folder: of the package, from ``find_persia()``.
        settings: of ``persia_role``. A staleness of 0 means no limit of batches in flight.
    Raises:
        BenchmarkError: a role failed, or the dense worker did not end in time.
    """
    nats, server, worker = free_ports(3)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        slots = {f"feature_{index}": {"dim": settings["dim"]} for index in range(settings["features"])}
        # JSON is YAML, too.
        (scratch / "embedding.yml").write_text(json.dumps({"slots_config": slots}))
        common = {"metrics_config": {"enable_metrics": False}, "job_type": "Train"}
        capacity = {"capacity": settings["features"] * settings["ids"], "num_hashmap_internal_shards": 64}
        (scratch / "global.yml").write_text(
            json.dumps({
                "common_config": common,
                "embedding_worker_config": {"forward_buffer_size": 1000},
                "embedding_parameter_server_config": capacity,
            })
        )  # fmt: skip
        environ = _environment() | {
            "PERSIA_NATS_URL": f"127.0.0.1:{nats}", "PERSIA_SOCKET_IFNAME": "lo", "LOG_LEVEL": "warn",
            "PERSIA_EMBEDDING_CONFIG": str(scratch / "embedding.yml"),
            "PERSIA_GLOBAL_CONFIG": str(scratch / "global.yml"),
            "REPLICA_INDEX": "0", "REPLICA_SIZE": "1",
        }  # fmt: skip

        def start(role: str, command: list[str], **variables: str) -> subprocess.Popen[str]:
            output, log = (stack.enter_context((scratch / f"{role}.{each}").open("w")) for each in ("out", "log"))
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=log, text=True, env=environ | variables, cwd=_ROOT
            )
            stack.callback(_stop, process)
            return process

        roles = {"nats-server": start("nats-server", ["nats-server", "-a", "127.0.0.1", "-p", str(nats)])}
        for role, port in ((_SERVER, server), (_WORKER, worker)):
            command = [str(folder / role), "--replica-size", "1", "--replica-index", "0", "--port", str(port)]
            roles[role] = start(role, command)
        text = json.dumps(settings)
        roles["loader"] = start("loader", [str(python), "-m", _MODULE, "loader", text])
        dense = start("dense", [str(python), "-m", _MODULE, "dense", text], RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        _wait(dense, roles, scratch, time_limit_s)
        found: dict[str, Any] = json.loads((scratch / "dense.out").read_text().strip().rpartition("\n")[2])
        return found


def _environment() -> dict[str, str]:
    """Headway's own packages must not hide those of Persia's environment."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"PYTHONPATH": str(_ROOT)}


def _wait(
    dense: subprocess.Popen[str], roles: Mapping[str, subprocess.Popen[str]], scratch: Path, time_limit_s: float
) -> None:
    ends = time.monotonic() + time_limit_s
    while dense.poll() is None:
        for role, process in roles.items():
            if process.poll() is not None:
                raise BenchmarkError(f"persia: {role} ended with {process.returncode}: {_last_line(scratch, role)}")
        if time.monotonic() > ends:
            raise BenchmarkError(
                f"persia: the dense worker did not end within {time_limit_s:.0f} s: {_last_line(scratch, 'dense')}"
            )
        time.sleep(0.05)
    if dense.returncode != 0:
        raise BenchmarkError(f"persia: the dense worker ended with {dense.returncode}: {_last_line(scratch, 'dense')}")


def _last_line(scratch: Path, role: str) -> str:
    written = [line for each in ("out", "log") for line in (scratch / f"{role}.{each}").read_text().splitlines()]
    return next((line.strip() for line in reversed(written) if line.strip()), "it printed nothing")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()
