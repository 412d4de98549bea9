"""Loads the C++ extension, after checking that it was built for the torch that is installed."""

from __future__ import annotations

import torch

try:
    from headway import _C
except ImportError as error:
    raise ImportError(
        f"headway's C++ extension cannot be loaded with torch {torch.__version__}: {error}. "
        "Build it with `make build`, or reinstall headway for this torch."
    ) from error

if torch.__version__.split("+")[0] != _C.torch_version:
    raise ImportError(
        f"headway was built for torch {_C.torch_version}, and torch {torch.__version__} is installed: reinstall headway"
    )

HeadwayBackend = _C.HeadwayBackend
Options = _C.Options
Slot = _C.Slot
SlotRing = _C.SlotRing
cuda_memory_generation = _C.cuda_memory_generation
empty = _C.empty
path = _C.__file__

__all__ = ["HeadwayBackend", "Options", "Slot", "SlotRing", "cuda_memory_generation", "empty", "path"]
