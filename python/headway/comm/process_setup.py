# SPDX-License-Identifier: Apache-2.0
"""Sets up what a process needs for its groups. ``import headway`` does none of it.

``prepare_process()`` runs when a group is created and in ``headway.init()``.
"""

from __future__ import annotations

import ctypes
import os
import warnings

import torch

from headway._environment import check_environment
from headway.comm import _exit, _logging, torchrec_shim

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_MAX_QUEUES = "32"

_warned_about_queues = False


def prepare_process() -> None:
    """Checks the environment and prepares this process for a group. Idempotent.

    It passes log records of the C++ library to ``logging``, registers the exit handler, asks CUDA for 32 hardware
    queues (``request_queues``), and installs ``torchrec_shim`` once TorchRec is imported.

    Raises:
        ValueError: a variable misspells a known ``HEADWAY_`` name, or ``HEADWAY_LOG`` names no level.
    """
    check_environment()
    _logging.install_once()
    _exit.register_once()
    request_queues()
    torchrec_shim.install_when_imported()


def request_queues() -> None:
    """Sets ``CUDA_DEVICE_MAX_CONNECTIONS`` to 32 unless the variable is set.

    A stream that waits for a peer blocks one hardware queue. With the default of 8 queues, a few such streams would
    block all others. CUDA reads the variable when it first uses a device. If that has happened, a warning says so.
    """
    global _warned_about_queues
    if _QUEUES in os.environ or torch.version.cuda is None:
        return
    if not _uses_a_device():
        os.environ[_QUEUES] = _MAX_QUEUES
    elif not _warned_about_queues:
        _warned_about_queues = True
        warnings.warn(
            f"CUDA was used before the first headway group, so it uses 8 hardware queues: streams that wait for "
            f"peers may hold up others. Set {_QUEUES}={_MAX_QUEUES}, or call headway.init() first.",
            RuntimeWarning,
            stacklevel=3,
        )


def _uses_a_device() -> bool:
    """True if a device has an active primary context, which ``torch.cuda.set_device`` makes too. Loads no driver."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    count, flags, active = ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:  # The driver is not initialised.
        return False
    for device in range(count.value):
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            return True
    return False
