# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of ``kserve_dlrm.py``, with a Python that has kserve."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from benchmarks.harness.dlrm_client import check_answers
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.served_dlrm import free_ports, stop_rank, stopped_together
from dlrm_examples.dlrm_inference.model import DlrmConfig

Tables = Literal["whole", "sharded"]
TABLES: tuple[Tables, ...] = get_args(Tables)
_ROOT = Path(__file__).resolve().parents[2]
_ASK_VERSIONS = """
import importlib.metadata as metadata, platform, torch
import kserve
print(f"kserve {metadata.version('kserve')}, torch {torch.__version__}, grpcio {metadata.version('grpcio')}, "
      f"python {platform.python_version()}")
"""


def kserve_versions(python: Path) -> str:
    """Versions of the packages of an interpreter that the server uses.

    Raises:
        BenchmarkError: a package is missing; the message says how to install it.
    """
    try:
        done = subprocess.run([str(python), "-c", _ASK_VERSIONS], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{python} does not run: {error}") from None
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise BenchmarkError(f"{python} has no kserve with torch ({reason}). {how_to_install()}")
    return done.stdout.strip()


def how_to_install() -> str:
    """Says how to make an environment with kserve, which needs older packages than Headway, and this torch."""
    import torch

    site_packages = Path(torch.__file__).parents[1]
    folder = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    return (
        "Make an environment for it, and name it by --kserve-python DIR/bin/python: "
        f"{sys.executable} -m venv DIR && DIR/bin/pip install kserve==0.21.0 && "
        f"echo {site_packages} > DIR/{folder}/torch.pth"
    )


@contextlib.contextmanager
def serve_with_kserve(
    python: Path,
    config: DlrmConfig,
    *,
    num_ranks: int,
    tables: Tables,
    max_rows: int,
    batch_delay_us: int,
    num_ids: int,
) -> Iterator[list[str]]:
    """Starts all ranks, and checks their predictions. Yields their addresses.

    Args:
        python: interpreter with kserve and torch.
        config: sizes and seed of the model.
        num_ranks: number of processes.
        tables: whether each rank has all tables.
        max_rows, batch_delay_us: of a batch, as for ``headway serve``.
        num_ids: ids of the check are below it.
    Raises:
        BenchmarkError: a rank does not start, or answers wrongly.
    """
    ports = free_ports(2 * num_ranks)
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        log = stack.enter_context((Path(folder) / "log").open("w"))
        ranks = []
        for rank in range(num_ranks):
            command = [str(python), "-m", "benchmarks.serving_peers.kserve_dlrm", "--uvloop", "--tables", tables]
            command += ["--table-rows", ",".join(map(str, config.table_rows)), "--store", str(Path(folder) / "store")]
            command += ["--rank", str(rank), "--size", str(num_ranks), "--grpc-port", str(ports[2 * rank])]
            command += ["--http-port", str(ports[2 * rank + 1]), "--max-rows", str(max_rows)]
            command += ["--batch-delay", str(batch_delay_us)]
            process = subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=_ROOT, env=environment)
            stack.callback(stop_rank, process)
            ranks.append(process)
        addresses = [f"127.0.0.1:{port}" for port in ports[::2]]
        with stopped_together(ranks):
            try:
                check_answers(addresses, config, num_ids=num_ids)
            except BenchmarkError as error:
                log.flush()
                written = Path(log.name).read_text().strip().rpartition("\n")[2]
                raise BenchmarkError(f"kserve: {error}; its last line: {written}") from None
            yield addresses
