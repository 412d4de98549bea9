# SPDX-License-Identifier: Apache-2.0
"""Programs that use the processor beside a measurement, as on a host that is busy with other work.

Three kinds, each with N processes of one thread:
    spin=N: counts; needs a core and no memory.
    memory=N: copies 256 MiB back and forth, more than caches hold; takes bandwidth of the memory as well.
    compile=N: compiles a C++ file with large headers again and again: short processes, files and memory.

The processes end with the block that started them, and also if this process is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_ROOT = Path(__file__).resolve().parents[2]
_COPIED_BYTES = 256 << 20
_SOURCE = """\
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
int main() {
  std::map<std::string, std::regex> all{{"a", std::regex("a+")}};
  std::cout << std::regex_match("aaa", all["a"]) << std::endl;
}
"""
_PR_SET_PDEATHSIG = 1
_START_LIMIT_S = 60


class ForeignLoadError(RuntimeError):
    """The load could not be started; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class ForeignLoad:
    """``num_processes`` programs of a kind: spin, memory or compile."""

    kind: str
    num_processes: int

    def __str__(self) -> str:
        return f"{self.kind}={self.num_processes}"


def parse_foreign_load(text: str) -> ForeignLoad:
    """Parses ``KIND=N``.

    Raises:
        argparse.ArgumentTypeError: the kind is unknown or N is not a number of processes.
    """
    kind, _, number = text.partition("=")
    if kind not in _PROGRAMS or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {'=N, '.join(_PROGRAMS)}=N, with N of at least 1")
    return ForeignLoad(kind=kind, num_processes=int(number))


@contextmanager
def foreign_load(loads: Sequence[ForeignLoad]) -> Iterator[None]:
    """Runs the programs of all loads during the block. It is entered when all of them run.

    Raises:
        ForeignLoadError: a program cannot start, for instance because there is no C++ compiler.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(_program(load.kind)) for load in loads for _ in range(load.num_processes)]
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != b"running\n":
                process.wait(timeout=_START_LIMIT_S)
                assert process.stderr is not None
                lines = process.stderr.read().decode(errors="replace").splitlines()
                raise ForeignLoadError(lines[-1] if lines else f"exit status {process.returncode}")
        yield


@contextmanager
def _program(kind: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", __name__, kind, str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])}
    # A group of processes of its own, to be killed as one, but no session: with `sched_autogroup_enabled`, Linux gives
    # each session an equal share of the processor, so that all ranks together would get as much as one program.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                               process_group=0)  # fmt: skip
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # The compiler's processes too.


def _say_running() -> None:
    print("running", flush=True)


def _spin() -> NoReturn:
    _say_running()
    count = 0
    while True:
        count += 1


def _copy_memory() -> NoReturn:
    first, second = memoryview(bytearray(_COPIED_BYTES)), memoryview(bytearray(_COPIED_BYTES))
    _say_running()
    while True:
        second[:] = first
        first[:] = second


def _compile() -> NoReturn:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        sys.exit(f"there is no C++ compiler ({compiler}) for the foreign load compile=N")
    with tempfile.TemporaryDirectory(prefix="headway-compile-") as folder:
        source = Path(folder) / "load.cpp"
        source.write_text(_SOURCE, encoding="utf-8")
        _say_running()
        while True:
            subprocess.run([compiler, "-std=c++17", "-O2", "-c", source, "-o", f"{folder}/load.o"], check=True)


_PROGRAMS = {"spin": _spin, "memory": _copy_memory, "compile": _compile}


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs one program: its kind, and the pid of the process that it must not outlive."""
    kind, parent = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the measurement has ended")
    _PROGRAMS[kind]()


if __name__ == "__main__":
    main(sys.argv[1:])
