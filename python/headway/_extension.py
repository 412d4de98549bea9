"""Loads the C++ extension of the process group."""

from __future__ import annotations

from headway._built_for import import_extension

import_extension("_C")

from headway import _C  # noqa: E402 - import_extension() has checked its torch version

HeadwayBackend = _C.HeadwayBackend
Options = _C.Options
Slot = _C.Slot
SlotRing = _C.SlotRing
cuda_memory_generation = _C.cuda_memory_generation
empty = _C.empty
end_live_parts = _C.end_live_parts
path = _C.__file__

__all__ = [
    "HeadwayBackend",
    "Options",
    "Slot",
    "SlotRing",
    "cuda_memory_generation",
    "empty",
    "end_live_parts",
    "path",
]
