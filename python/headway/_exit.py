"""Leaves all groups and ends their threads when the program exits.

A thread that frees a tensor after the interpreter has shut down aborts the process. An exit handler therefore ends the
threads of all headway groups while the interpreter is still alive. These are Headway's own threads and the threads of
Gloo, which does the reductions.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
from datetime import timedelta

from headway._extension import end_live_parts

#: Longest time that the exit handler waits until peers have received what this rank sent. It matters only for programs
#: that do not call ``destroy_process_group()``.
DELIVERY_TIME = timedelta(seconds=2)
#: Longest time that the exit handler waits for pending reductions and callbacks; it abandons threads that take longer.
END_TIME = timedelta(seconds=1)


_registered_for: int | None = None  #: Pid of the process in which register_in_child() has already run.


def register() -> None:
    """Registers the exit handler. Handlers registered earlier run after it, so they can no longer use groups."""
    atexit.register(end_live_parts, DELIVERY_TIME, END_TIME)


def register_in_child() -> None:
    """Does the same in a child of ``multiprocessing``; called before each group is created, effective once per process.

    A forked child runs the finalizers of ``multiprocessing``, then calls ``os._exit()``, and runs no exit handlers.
    """
    global _registered_for
    if multiprocessing.parent_process() is None or _registered_for == os.getpid():
        return
    _registered_for = os.getpid()
    multiprocessing.util.Finalize(None, end_live_parts, args=(DELIVERY_TIME, END_TIME), exitpriority=100)
