# SPDX-License-Identifier: Apache-2.0
"""Runs a program, and ends it with all processes that it started even if this process is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from benchmarks.harness.errors import BenchmarkError

_GRACE_S = 5.0  #: Seconds between SIGTERM and SIGKILL.


def run_process_tree(
    command: list[str], *, timeout_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Waits for ``command`` and returns its status and output.

    Raises:
        BenchmarkError: the command cannot be started, or took longer than ``timeout_s``.
    """
    try:
        # A session of its own: Ctrl-C then ends this process, which ends the others.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                   start_new_session=True)  # fmt: skip
    except OSError as error:
        raise BenchmarkError(f"{command[0]}: {error.strerror}") from None
    with process, _exit_on_sigterm():
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise BenchmarkError(f"{' '.join(command)} took longer than {timeout_s:.0f} s") from None
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str]) -> None:
    # mpirun gives each rank a session of its own. It ends the ranks when it gets SIGTERM.
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    def leave(_number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
