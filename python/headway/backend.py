"""Registers the backend with ``torch.distributed``."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from headway import _exit, torchrec_shim
from headway._extension import HeadwayBackend, Options
from headway.groups import NAME
from headway.options import complete_options


def register() -> None:
    """Makes ``"headway"`` a backend of ``torch.distributed``: one instance serves all device types of a group.

    It registers for CUDA only if CUDA is available. Otherwise torch's checkpointing asks for the current CUDA device
    and fails.

    It sets ``CUDA_DEVICE_MAX_CONNECTIONS`` to 32 unless the variable is set. A stream that waits for a peer blocks one
    hardware queue. With the default of 8 queues, a few such streams would block all others.
    """
    if torch.version.cuda is not None and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    devices = ["cpu", "cuda"] if has_cuda() else ["cpu"]
    dist.Backend.register_backend(NAME, create_backend, extended_api=True, devices=devices)


def has_cuda() -> bool:
    """``torch.cuda.is_available()`` through NVML where possible.

    The usual check initialises the CUDA driver, and children forked after that cannot use CUDA.
    """
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
    if "torchrec" in sys.modules and not torchrec_shim.is_installed():
        warnings.warn(torchrec_shim.MISSING, RuntimeWarning, stacklevel=2)
    _exit.register_in_child()
    complete = complete_options(
        options, timeout=group.timeout, group_name=group.group_id, global_ranks=list(group.global_ranks_in_group)
    )
    return HeadwayBackend(group.store, group.group_rank, group.group_size, complete, make_reducer)


def make_reducer(store: Store, rank: int, size: int, timeout: timedelta, device: str, address: str) -> Any:
    """Creates the backend that computes reductions: Gloo for CPU tensors, NCCL for CUDA tensors.

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
