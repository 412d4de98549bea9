# SPDX-License-Identifier: Apache-2.0
"""Keeps TorchRec from treating a headway group as a fake group.

TorchRec 1.6 to 1.9 call ``_get_backend_name()``, which returns "custom" for every plug-in backend. TorchRec takes
"custom" for a fake group of its tests and makes up outputs without communication: once in
``torchrec/distributed/comm_ops.py`` with ``set_use_sync_collectives(True)``, and twice in ``dist_data.py`` under
``torch.compile``. With the shim a headway group returns its registered name, "headway".

The shim is installed when a headway group and TorchRec meet: at the creation of a group if TorchRec is imported, else
when it is imported later.
"""

from __future__ import annotations

import functools
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import torch.distributed as dist

from headway.comm.groups import NAME, find_backend

_MARK = "_headway_original"


class _ImportHook(MetaPathFinder):
    """Installs the shim when TorchRec is about to be imported. It finds no modules itself."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Answers None, so that the usual finders go on."""
        if fullname == "torchrec":
            sys.meta_path.remove(self)
            install()


def install_when_imported() -> None:
    """Installs the shim at once if TorchRec is imported, else when it will be. Idempotent."""
    if "torchrec" in sys.modules:
        install()
    elif not is_installed() and not any(isinstance(finder, _ImportHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportHook())


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
