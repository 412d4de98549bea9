# SPDX-License-Identifier: Apache-2.0
"""The programs in the guides run as the guides say, and print what the guides say.

A program is a block of Python whose first line is a comment with its file name. The blocks behind it, up to the next
heading, are its commands (without a language) and their output (``text``). ``...`` in an output line is any text.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from headway._environment import KNOWN_VARIABLES

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Arguments of the interpreter for each program that the guides call.
PROGRAMS_OF = {
    "torchrun": ["-m", "torch.distributed.run"],
    "python": [],
    "headway": ["-m", "headway_launcher"],
    "torchfrtrace": ["-m", "torch.distributed.flight_recorder.fr_trace"],
}
_BLOCK = re.compile(r"^(?P<heading>#+ [^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"# (?P<name>\w+\.py)\n")


@dataclass
class Example:
    """A program of a guide."""

    name: str
    source: str
    commands: list[tuple[str, list[str]]] = field(default_factory=list)  #: command, and the lines of its output


def examples_in(page: str) -> Iterator[Example]:
    """Yields the programs of a page with their commands."""
    example: Example | None = None
    for block in _BLOCK.finditer(page):
        named = _NAME.match(block["text"] or "") if block["language"] == "python" else None
        if example is not None and (block["heading"] or named):
            yield example
            example = None
        if named:
            example = Example(named["name"], block["text"])
        elif example is not None and block["language"] == "":
            example.commands += [(line, []) for line in block["text"].splitlines()]
        elif example is not None and block["language"] == "text":
            example.commands[-1][1].extend(block["text"].splitlines())
    if example is not None:
        yield example


def found_examples() -> list[Example]:
    return [each for path in sorted(DOCS.glob("*.md")) for each in examples_in(path.read_text(encoding="utf-8"))]


def run_command(command: str, folder: Path) -> str:
    """Runs one line of a shell as the guides write it; returns its output."""
    words = shlex.split(command)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")
    arguments = [sys.executable, *PROGRAMS_OF[words[0]], *words[1:]]
    finished = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    return output


def has_line(output: str, line: str) -> bool:
    """Whether ``output`` has ``line``, with ``...`` for any text. Lines of two ranks may follow each other directly."""
    return re.search(".*".join(re.escape(part) for part in line.split("...")), output) is not None


def test_every_guide_has_a_program() -> None:
    guides = ("get_started", "process_group", "torchrec", "embedding_tables", "hstu", "debugging", "tuning")
    for name in guides:
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert list(examples_in(page)), f"{name}.md has no program"


@pytest.mark.parametrize("example", found_examples(), ids=lambda example: example.name)
def test_a_program_does_what_its_guide_says(example: Example, tmp_path: Path) -> None:
    if "torchrec" in example.source and importlib.util.find_spec("torchrec") is None:
        pytest.skip("TorchRec is not installed")
    (tmp_path / example.name).write_text(example.source, encoding="utf-8")
    assert example.commands, f"{example.name}: the guide has no command"
    for command, lines in example.commands:
        output = run_command(command, tmp_path)
        missing = [line for line in lines if not has_line(output, line)]
        assert not missing, f"{command} printed:\n{output}"


def test_the_page_of_variables_is_complete() -> None:
    page = (DOCS / "api/command_line.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(HEADWAY_\w+)`", page, re.MULTILINE)) == set(KNOWN_VARIABLES)


def test_dots_stand_for_any_text() -> None:
    assert has_line("a\nrank 0: peer 1 lost\n", "rank 0: ... lost")
    assert not has_line("a\nrank 0: peer 1 lost\n", "rank 0: lost")
