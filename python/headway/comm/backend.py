# SPDX-License-Identifier: Apache-2.0
"""Registers the backend "headway" with ``torch.distributed`` and creates its instances, one per rank and group."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from headway.comm._extension import HeadwayBackend, Options
from headway.comm.groups import NAME
from headway.comm.options import complete_options
from headway.comm.process_setup import prepare_process


def register() -> None:
    """Makes ``"headway"`` a backend of ``torch.distributed``: one instance serves all device types of a group.

    It registers for CUDA only if there is a GPU. Otherwise torch's checkpointing asks for the current CUDA device and
    fails.
    """
    # Counts by NVML where possible. Initialising CUDA instead would keep forked children from using it.
    has_gpu = torch.version.cuda is not None and torch.cuda.device_count() > 0
    devices = ["cpu", "cuda"] if has_gpu else ["cpu"]
    dist.Backend.register_backend(NAME, create_backend, extended_api=True, devices=devices)


def create_backend(group: Any, options: Options | None) -> HeadwayBackend:
    """Connects one rank of a group; c10d calls this on every rank.

    Args:
        group: c10d's ``_DistributedBackendOptions``: store, rank, size, timeout, name.
        options: the caller's ``pg_options``, or None.
    Raises:
        TypeError, ValueError: an option or an environment variable is wrong.
        torch.distributed.DistBackendError: the ranks could not be connected. The message names the missing ranks or the
            settings that differ.
    """
    prepare_process()
    complete = complete_options(
        options, timeout=group.timeout, group_name=group.group_id, global_ranks=list(group.global_ranks_in_group)
    )
    return HeadwayBackend(group.store, group.group_rank, group.group_size, complete, make_delegate)


def make_delegate(store: Store, rank: int, size: int, timeout: timedelta, device: str, address: str) -> Any:
    """Creates a delegate: the backend that computes reductions, Gloo for CPU tensors and NCCL for CUDA tensors.

    Args:
        store, rank, size, timeout: as given to the group.
        device: type of the tensors' device, "cpu" or "cuda".
        address: numeric address of this host at which peers have reached this rank. Gloo listens there. Its default
            would be the address of the host's name, which is often a loopback address. ``GLOO_SOCKET_IFNAME``, if set,
            takes precedence.
    Raises:
        RuntimeError: no reducing backend is known for ``device``.
    """
    if device == "cpu" and os.environ.get("GLOO_SOCKET_IFNAME"):
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    if device == "cpu":
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._threads = 2
        options._timeout = timeout
        return dist.ProcessGroupGloo(store, rank, size, options)
    if device == "cuda" and dist.is_nccl_available():
        nccl_options = dist.ProcessGroupNCCL.Options()
        nccl_options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, nccl_options)
    raise RuntimeError(f"no backend is known that reduces tensors on {device}")
