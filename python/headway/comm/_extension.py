# SPDX-License-Identifier: Apache-2.0
"""Loads the C++ extension of the process group."""

from __future__ import annotations

from headway._extension_import import import_extension

import_extension("_C")

from headway import _C  # noqa: E402 - import_extension() has checked its torch version

HeadwayBackend = _C.HeadwayBackend
Options = _C.Options
Slot = _C.Slot
SlotRing = _C.SlotRing
cuda_memory_generation = _C.cuda_memory_generation
empty = _C.empty
flush_log = _C.flush_log
run_exit_hooks = _C.run_exit_hooks
set_log_function = _C.set_log_function
path = _C.__file__

__all__ = [
    "HeadwayBackend",
    "Options",
    "Slot",
    "SlotRing",
    "cuda_memory_generation",
    "empty",
    "flush_log",
    "path",
    "run_exit_hooks",
    "set_log_function",
]
