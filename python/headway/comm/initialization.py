# SPDX-License-Identifier: Apache-2.0
"""Creates the default group under any launcher."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from headway.comm.groups import NAME
from headway.comm.launchers import adopt_launcher_environment
from headway.comm.process_setup import prepare_process


def init(backend: str = NAME, **arguments: Any) -> None:
    """Prepares this process and calls ``torch.distributed.init_process_group``.

    Under mpirun and srun it first sets torch's ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and so on from the launcher's
    variables; variables that are set stay. Under torchrun ``init_process_group("headway")`` does the same job.

    Args:
        backend: as in ``init_process_group``, for instance "headway" or "cpu:headway,cuda:nccl".
        arguments: further arguments of ``init_process_group``.
    Raises:
        ValueError: an environment variable is misspelt, or torch misses a variable of its own.
        torch.distributed.DistBackendError: the ranks could not be connected.
    """
    prepare_process()
    adopt_launcher_environment()
    dist.init_process_group(backend, **arguments)
