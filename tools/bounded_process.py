"""Runs a command with a time limit, and kills every process that it leaves in its process group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GRACE_S = 5.0  #: seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Result of a command."""

    exit_status: int  #: as in a shell: 128 + N if signal N ended the command
    output: str  #: standard output and standard error, interleaved
    duration_s: float
    timed_out: bool


class BoundedProcess:
    """A command in its own process group. Leaving the ``with`` statement ends the whole group."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, is_shown: bool = True
    ) -> None:
        """Starts the command.

        Args:
            command: program and arguments.
            environment: variables to add to those of this process.
            is_shown: print the output as it comes.
        """
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=_copy_output, args=(self._process, self._lines, is_shown), daemon=True)
        self._reader.start()

    def __enter__(self) -> BoundedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        _end_group(self._process)

    def finish(self, *, limit_s: float, log: Path | None = None) -> Finished:
        """Waits for the end of the command.

        Args:
            limit_s: seconds after the start at which the process group is killed.
            log: file that receives the output.
        """
        timed_out = False
        try:
            self._process.wait(timeout=max(0.0, self._started + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end_group(self._process)
        status = self._process.wait()
        self._reader.join(timeout=10)
        output = "".join(self._lines)
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(output, encoding="utf-8")
        return Finished(
            exit_status=status if status >= 0 else 128 - status,
            output=output,
            duration_s=time.monotonic() - self._started,
            timed_out=timed_out,
        )


def run_bounded(
    command: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None, log: Path | None = None
) -> Finished:
    """Runs ``command`` in its own process group and prints its output as it comes.

    Args:
        command: program and arguments.
        limit_s: seconds after which the whole process group is killed.
        environment: variables to add to those of this process.
        log: file that also receives the output.
    """
    with BoundedProcess(command, environment=environment) as process:
        return process.finish(limit_s=limit_s, log=log)


def _copy_output(process: subprocess.Popen[str], lines: list[str], is_shown: bool) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if is_shown:
            sys.stdout.write(line)
            sys.stdout.flush()


def _end_group(process: subprocess.Popen[str]) -> None:
    """Ends the command if it still runs, and all processes left in its process group.

    It sends SIGTERM first, so that a command that runs bounded processes itself can end them, and SIGKILL after that.
    """
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)


def end_on_sigterm() -> None:
    """Makes SIGTERM run the ``finally`` clauses of this process, which end its bounded processes."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
