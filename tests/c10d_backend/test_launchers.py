# SPDX-License-Identifier: Apache-2.0
"""Starts under torchrun, mpirun, srun's variables and spawn."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import headway
import pytest
import torch.distributed as dist
import torch.multiprocessing
from headway.comm.launchers import launcher_variables

PROGRAM = """
import torch, torch.distributed as dist, headway
headway.init()
tensor = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(tensor)
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.item()}", flush=True)
dist.destroy_process_group()
"""


FORKING_PROGRAM = """
import os, sys, torch, torch.distributed as dist, headway
dist.init_process_group("headway")
for _ in range(2):
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with the interpreter's whole tear-down
    assert os.waitpid(child, 0)[1] == 0
print(f"rank {dist.get_rank()} is fine", flush=True)
"""


def clean_environment() -> dict[str, str]:
    """This process's environment without the variables of any launcher, with the checkout on the path."""
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMIX_", "PMI_", "SLURM_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    environ["PYTHONPATH"] = str(pathlib.Path(headway.__file__).parents[1])
    environ["OMP_NUM_THREADS"] = "1"
    return environ


def run(command: list[str], tmp_path: pathlib.Path, environ: dict[str, str], text: str = PROGRAM) -> str:
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [*command, str(program)], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torchrun_starts_a_group(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    output = run(command, tmp_path, clean_environment())
    assert "rank 0 of 2: 3.0" in output and "rank 1 of 2: 3.0" in output


def test_children_that_exit_and_ranks_that_do_not_say_goodbye_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    output = run(command, tmp_path, clean_environment(), FORKING_PROGRAM)
    assert "rank 0 is fine" in output and "rank 1 is fine" in output


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun_starts_a_group_without_torchs_variables(tmp_path: pathlib.Path) -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    output = run(command, tmp_path, clean_environment())
    assert "rank 0 of 2: 3.0" in output and "rank 1 of 2: 3.0" in output


def test_slurms_variables_start_a_group(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    job |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env=clean_environment() | job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "rank 1 of 2: 3.0" in outputs[1]


def spawned(rank: int, path: str) -> None:
    dist.init_process_group("headway", init_method=f"file://{path}", rank=rank, world_size=2)
    gathered = [None, None]
    dist.all_gather_object(gathered, rank)
    assert gathered == [0, 1]
    assert headway.stats()["peers"][1 - rank]["messages_sent"] > 0
    dist.destroy_process_group()


def test_spawned_processes_make_a_group(tmp_path: pathlib.Path) -> None:
    torch.multiprocessing.spawn(spawned, (str(tmp_path / "store"),), nprocs=2)


def test_torchs_own_variables_win() -> None:
    assert launcher_variables({"RANK": "0", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, parent=1) == {}


def test_an_open_mpi_job_on_one_host_needs_nothing_more() -> None:
    environ = {
        f"OMPI_COMM_WORLD_{n}": v for n, v in {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "3", "LOCAL_SIZE": "4"}.items()
    }
    first = launcher_variables(environ, parent=77)
    assert (first["RANK"], first["WORLD_SIZE"], first["LOCAL_RANK"], first["MASTER_ADDR"]) == (
        "3",
        "4",
        "3",
        "127.0.0.1",
    )
    assert first["MASTER_PORT"] == launcher_variables(environ | {"OMPI_COMM_WORLD_RANK": "0"}, parent=77)["MASTER_PORT"]
    assert first["MASTER_PORT"] != launcher_variables(environ, parent=78)["MASTER_PORT"]
    several = launcher_variables(environ | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, parent=77)
    assert "MASTER_ADDR" not in several, "the first host of several is not known"


@pytest.mark.parametrize(
    ("hosts", "first"), [("node[03-05,9],gpu1", "node03"), ("gpu1,gpu2", "gpu1"), ("a[7],b", "a7"), ("alone", "alone")]
)
def test_slurms_first_host_is_the_rendezvous(hosts: str, first: str) -> None:
    environ = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "5"}
    assert launcher_variables(environ | {"SLURM_STEP_NODELIST": hosts}, parent=1)["MASTER_ADDR"] == first


def test_a_slurm_batch_script_is_no_rank() -> None:
    assert launcher_variables({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, parent=1) == {}
