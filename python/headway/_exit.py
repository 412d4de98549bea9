"""Leaves all groups when the program ends.

A thread that lets go of a tensor after the interpreter has shut down aborts the process. Those of headway's groups
therefore end in an exit handler, while the interpreter is alive: its own ones, and those of Gloo, which reduces.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
from datetime import timedelta

from headway._extension import end_live_parts

#: How long messages that were sent and that peers have not taken yet hold up the end of a program which does not call
#: ``destroy_process_group()``.
DELIVERY_TIME = timedelta(seconds=2)
#: How long pending reductions and callbacks hold it up. A thread that has not ended by then is left behind.
END_TIME = timedelta(seconds=1)


_registered_for: int | None = None  #: process whose finalizers of ``multiprocessing`` include ours


def register() -> None:
    """Exit handlers that were registered before this one may no longer use groups: they run after it."""
    atexit.register(end_live_parts, DELIVERY_TIME, END_TIME)


def register_in_child() -> None:
    """Does the same in a child of ``multiprocessing``, before it makes a group.

    Such a child, unless it was spawned, ends by ``os._exit()`` after its finalizers and runs no exit handlers.
    """
    global _registered_for
    if multiprocessing.parent_process() is None or _registered_for == os.getpid():
        return
    _registered_for = os.getpid()
    multiprocessing.util.Finalize(None, end_live_parts, args=(DELIVERY_TIME, END_TIME), exitpriority=100)
