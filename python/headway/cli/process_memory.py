# SPDX-License-Identifier: Apache-2.0
"""``keep_freed_memory()``: a process keeps memory that it frees, for its next batches.

A training reads batches of about the same size again and again. By default glibc returns large blocks to the system
when they are freed, and mimalloc, which pyarrow uses, after 10 ms. The system then clears each page that it gives anew:
a fifth of the processor time of reading Parquet files with 256 streams. The price is that the process keeps the memory
of its largest batches.
"""

from __future__ import annotations

import ctypes
import os
import sys

_LARGEST_THRESHOLD = 32 << 20  #: glibc refuses larger blocks from its heap.
_NEVER = (1 << 31) - 1
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  #: Numbers of mallopt(3).


def keep_freed_memory() -> None:
    """Lets this process and those that it starts keep freed memory. Variables of the user stay as they are.

    pyarrow reads its variable when it is loaded, so this comes before.
    """
    is_set_by_user = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"))
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(_NEVER))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(_LARGEST_THRESHOLD))
    if is_set_by_user or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none.
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_TRIM_THRESHOLD, _NEVER)
