# SPDX-License-Identifier: Apache-2.0
"""Sets torch's ``env://`` variables under mpirun and srun.

These launchers do not set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which ``init_process_group("headway")`` needs.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, MutableMapping

#: MASTER_PORT is chosen from [FIRST_PORT, FIRST_PORT + NUM_PORTS), below the kernel's range of ephemeral ports.
FIRST_PORT, NUM_PORTS = 20000, 10000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launcher:
    """Names of a launcher's variables for RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.

    ``required`` names a further variable that only ranks have; None: ``rank`` is enough.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str | None
    job: tuple[str, ...]  #: variables that are equal on all ranks of a job and differ between jobs
    required: str | None = None


LAUNCHERS = (
    Launcher(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    ),
    Launcher(
        name="Slurm",
        rank="SLURM_PROCID",
        world_size="SLURM_NTASKS",
        local_rank="SLURM_LOCALID",
        local_world_size=None,
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        required="SLURM_STEP_ID",  # A batch script has the other variables too, but it is not a rank.
    ),
    Launcher(
        name="MPICH, Intel MPI",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world_size="MPI_LOCALNRANKS",
        job=("PMI_JOBID", "HYDI_CONTROL_FD"),
    ),
)


def adopt_launcher_environment(environ: MutableMapping[str, str] | None = None) -> None:
    """Sets torch's variables from the launcher's. It never changes a variable that is already set."""
    environ = os.environ if environ is None else environ
    for name, value in launcher_variables(environ, parent=os.getppid()).items():
        environ.setdefault(name, value)


def launcher_variables(environ: Mapping[str, str], *, parent: int) -> dict[str, str]:
    """Derives torch's variables from those of the launcher.

    Args:
        environ: environment of the process.
        parent: pid of the parent process, which is the same for all ranks of a host under mpirun. It identifies the
            job if the launcher gives no job id.
    Returns:
        torch's variables; empty if RANK or WORLD_SIZE is set, or if no launcher is found. MASTER_ADDR is left out if it
        is unknown (Open MPI and MPICH on several hosts). torch then reports that it is missing.
    """
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return {}
    for launcher in LAUNCHERS:
        if (
            launcher.rank in environ
            and launcher.world_size in environ
            and (launcher.required or launcher.rank) in environ
        ):
            return _variables_of(launcher, environ, parent)
    return {}


def _variables_of(launcher: Launcher, environ: Mapping[str, str], parent: int) -> dict[str, str]:
    size = environ[launcher.world_size]
    variables = {"RANK": environ[launcher.rank], "WORLD_SIZE": size}
    variables["LOCAL_RANK"] = environ.get(launcher.local_rank, "0")
    local_size = environ.get(launcher.local_world_size) if launcher.local_world_size else _slurm_local_size(environ)
    if local_size is not None:
        variables["LOCAL_WORLD_SIZE"] = local_size
    is_one_host = local_size == size or size == "1"
    address = "127.0.0.1" if is_one_host else _first_slurm_host(environ)
    if address is not None:
        variables["MASTER_ADDR"] = address
    job = ".".join(environ[name] for name in launcher.job if name in environ) or f"parent {parent}"
    variables["MASTER_PORT"] = str(FIRST_PORT + _hash_of(job) % NUM_PORTS)
    return variables


def _slurm_local_size(environ: Mapping[str, str]) -> str | None:
    """Tasks per host of this Slurm step, from "2" or "2(x4)"; None if hosts have different numbers of tasks."""
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    match = re.fullmatch(r"(\d+)(\(x\d+\))?", counts)
    return match.group(1) if match else None


def _first_slurm_host(environ: Mapping[str, str]) -> str | None:
    """Host of rank 0: ``node[03-05,9],gpu1`` gives ``node03``."""
    hosts = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST"))
    if hosts is None:
        return None
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", hosts)
    return None if match is None else match.group(1) + (match.group(2) or "")


def _hash_of(text: str) -> int:
    """32-bit polynomial hash. It is equal in all processes, unlike ``hash()``."""
    value = 0
    for byte in text.encode():
        value = (value * 131 + byte) % (1 << 32)
    return value
