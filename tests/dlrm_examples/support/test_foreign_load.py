# SPDX-License-Identifier: Apache-2.0
"""Programs that run beside a measurement: they use processors, and they end with it.

The kinds: spin counts, memory copies memory, compile runs a C++ compiler again and again. ``spin=2`` is two processes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlrm_examples.support.foreign_load import ForeignLoad, ForeignLoadError, foreign_load, parse_foreign_load

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("spin", "memory", "compile")


def programs() -> list[Path]:
    """Running programs of foreign loads, as folders of /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            is_leader = os.getpgid(int(folder.name)) == int(folder.name)
        except OSError:
            continue
        # Between fork and exec, a child of a program still has the command line of the program, but leads no group.
        if b"dlrm_examples.support.foreign_load" in words and is_leader:
            found.append(folder)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_programs_use_a_processor_until_the_block_ends(kind: str) -> None:
    before = set(programs())
    with foreign_load([ForeignLoad(kind=kind, num_processes=2)]):
        started = set(programs()) - before
        assert len(started) == 2
        # With sched_autogroup_enabled, Linux gives each session an equal share of the processor, however many
        # processes it has. So programs must stay in the session of the ranks.
        assert {os.getsid(int(folder.name)) for folder in started} == {os.getsid(0)}
        deadline = time.monotonic() + 20
        while not all(ticks_of(folder) for folder in started):
            assert time.monotonic() < deadline, "a program uses no processor time"
            time.sleep(0.02)
    assert not set(programs()) & started


def ticks_of(folder: Path) -> int:
    """Processor time of a process and of its children that have ended, in clock ticks."""
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def test_programs_end_with_a_measurement_that_is_killed() -> None:
    code = (
        "import time; from dlrm_examples.support.foreign_load import *\n"
        "with foreign_load([ForeignLoad(kind='spin', num_processes=1)]): print('on', flush=True); time.sleep(100)"
    )
    before = set(programs())
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as measurement:
        assert measurement.stdout is not None
        assert measurement.stdout.readline() == "on\n"
        assert set(programs()) - before
        measurement.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while set(programs()) - before:
            assert time.monotonic() < deadline, "the program has outlived the measurement"
            time.sleep(0.02)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CXX", "no-such-compiler")
    load = foreign_load([ForeignLoad(kind="compile", num_processes=1)])
    with pytest.raises(ForeignLoadError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        load.__enter__()


@pytest.mark.parametrize("text", ["spin", "spin=0", "spin=-1", "spin=x", "sleep=2", "=2", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="spin=N, memory=N, compile=N"):
        parse_foreign_load(text)


def test_a_load_prints_as_it_is_written() -> None:
    assert str(parse_foreign_load("memory=12")) == "memory=12"
