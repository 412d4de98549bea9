# SPDX-License-Identifier: Apache-2.0
"""Registers the backend when torch is imported, so that ``init_process_group("headway")`` needs no import.

PyTorch calls ``register()`` at the end of ``import torch`` (entry point ``torch.backends``), in every program of the
environment. So this module imports nothing of Headway until a headway group is created. An error of Headway, for
instance an extension that was built for another torch, shows then and not in ``import torch``.
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` switches it off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def register() -> None:
    """Makes ``"headway"`` known to ``torch.distributed`` if this torch has it. ``import headway`` does the same."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return
    has_device = torch.version.cuda is not None and any(Path("/dev").glob("nvidia[0-9]*"))
    devices = ["cpu", "cuda"] if has_device and torch.cuda.device_count() > 0 else ["cpu"]
    dist.Backend.register_backend("headway", _create_backend, extended_api=True, devices=devices)


def _create_backend(group: Any, options: Any) -> Any:
    from headway.comm.backend import create_backend

    return create_backend(group, options)
