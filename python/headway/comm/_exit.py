# SPDX-License-Identifier: Apache-2.0
"""Leaves all groups and ends their threads when the program exits.

A thread that frees a tensor after the interpreter has shut down aborts the process. An exit handler therefore ends the
threads of all headway groups while the interpreter is still alive. These are Headway's own threads and the threads of
Gloo, which does the reductions.

Threads of a group with PyTorch's own backend "gloo" are out of reach. So a program of this repository that has such a
group ends by ``end_process()``.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
from datetime import timedelta

from headway.comm import _logging
from headway.comm._extension import run_exit_hooks

#: Longest time that the exit handler waits until peers have received what this rank sent. It matters only for programs
#: that do not call ``destroy_process_group()``.
DELIVERY_TIME = timedelta(seconds=2)
#: Longest time that the exit handler waits for pending reductions and callbacks; it abandons threads that take longer.
END_TIME = timedelta(seconds=1)
#: Longest time that the exit handler waits for log records.
LOG_TIME = timedelta(seconds=1)


_registered_for: int | None = None  #: Pid of the process in which register_once() has already run.


def register() -> None:
    """Registers the exit handler. Handlers registered earlier run after it, so they can no longer use groups."""
    atexit.register(_end)


def register_once() -> None:
    """Does what ``register()`` does, once per process; called before each group is created.

    A forked child inherits the handler. A child of ``multiprocessing`` runs no exit handlers but the finalizers of
    ``multiprocessing``, and then calls ``os._exit()``.
    """
    global _registered_for
    if _registered_for == os.getpid():
        return
    if _registered_for is None:
        register()
    _registered_for = os.getpid()
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _end, exitpriority=100)


def _end() -> None:
    run_exit_hooks(DELIVERY_TIME, END_TIME)
    _logging.end(LOG_TIME)
