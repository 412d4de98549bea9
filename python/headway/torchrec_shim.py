"""Keeps TorchRec from treating a headway group as a fake group.

TorchRec 1.6.1 calls ``_get_backend_name()``, which returns "custom" for every plug-in backend. TorchRec takes "custom"
for a fake group of its tests and makes up outputs without communication: in ``torchrec/distributed/comm_ops.py`` with
``set_use_sync_collectives(True)``, and in ``dist_data.py`` under ``torch.compile``. With the shim a headway group
returns its registered name, "headway".
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from headway.groups import NAME, find_backend

MISSING = (
    "TorchRec takes a headway group for a fake one and makes up results without communication: "
    "call headway.torchrec_shim.install() first"
)

_MARK = "_headway_original"


def install() -> None:
    """Makes ``ProcessGroup._get_backend_name`` return "headway" for headway groups. Idempotent."""
    if is_installed():
        return
    original = dist.ProcessGroup._get_backend_name

    @functools.wraps(original)
    def _get_backend_name(group: dist.ProcessGroup) -> str:
        name: str = original(group)
        return NAME if name == "custom" and find_backend(group) is not None else name

    setattr(_get_backend_name, _MARK, original)
    _replace(_get_backend_name)


def uninstall() -> None:
    """Undoes ``install()``; for tests of TorchRec's behaviour without the shim."""
    if is_installed():
        _replace(getattr(dist.ProcessGroup._get_backend_name, _MARK))


def is_installed() -> bool:
    """Whether the shim is installed."""
    return hasattr(dist.ProcessGroup._get_backend_name, _MARK)


def _replace(method: Any) -> None:
    dist.ProcessGroup._get_backend_name = method  # type: ignore[method-assign]
