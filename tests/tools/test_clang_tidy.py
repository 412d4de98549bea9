# SPDX-License-Identifier: Apache-2.0
"""tools/clang_tidy.py: what it checks, and what it skips. A script stands for clang-tidy; the compiler is real."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# It finds fault with sources and headers that have the word BAD, and writes down what it was asked to check.
TOOL = """#!/bin/sh
if [ "$1" = --version ]; then cat "$VERSION_FILE"; exit; fi
for last; do :; done
echo "$last" >> "$CALLS_FILE"
echo "1 warning generated."
if grep -q BAD "$last" "$(dirname "$last")"/*.hpp; then echo "$last: a fault"; exit 1; fi
"""


def load() -> Any:
    spec = importlib.util.spec_from_file_location("clang_tidy", ROOT / "tools" / "clang_tidy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Project:
    """A checkout with two sources, of which one includes a header, and a third one that needs torch."""

    def __init__(self, root: Path, calls: Path, cache: Path) -> None:
        self.root, self._calls, self._cache = root, calls, cache
        (root / "base" / "torch").mkdir(parents=True)
        (root / ".clang-tidy").write_text("Checks: all")
        (root / "base" / "a.hpp").write_text("int a();")
        (root / "base" / "a.cpp").write_text('#include "a.hpp"\nint a() { return 1; }')
        (root / "base" / "b.cpp").write_text("int b() { return 1; }")
        (root / "base" / "torch" / "c.cpp").write_text("int c() { return 1; }")
        self.write_commands("-O1")

    def write_commands(self, flag: str) -> None:
        build = self.root / "build"
        build.mkdir(exist_ok=True)
        names = ["base/a.cpp", "base/b.cpp", "base/torch/c.cpp", "base/b.cpp"]
        entries = [
            {"file": str(self.root / name), "directory": str(build),
             "command": f"{shutil.which('c++')} {flag} -I{self.root}/base -o {index}.o -c {self.root / name}"}
            for index, name in enumerate(names)
        ]  # fmt: skip
        (build / "compile_commands.json").write_text(json.dumps(entries))

    def check(self) -> tuple[int, list[str]]:
        """Returns the exit status and the sources that were checked."""
        self._calls.write_text("")
        status: int = load().main(self.root / "build", self._cache, self.root)
        return status, sorted(Path(line).name for line in self._calls.read_text().splitlines())


@pytest.fixture
def version(tmp_path: Path) -> Path:
    path = tmp_path / "version"
    path.write_text("14")
    return path


@pytest.fixture
def calls(tmp_path: Path, version: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / "clang-tidy"
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    monkeypatch.setenv("CALLS_FILE", str(tmp_path / "calls"))
    monkeypatch.setenv("VERSION_FILE", str(version))
    return tmp_path / "calls"


@pytest.fixture
def project(tmp_path: Path, calls: Path) -> Project:
    return Project(tmp_path / "checkout", calls, tmp_path / "cache")


def test_sources_without_torch_are_checked_once(project: Project) -> None:
    assert project.check() == (0, ["a.cpp", "b.cpp"])
    assert project.check() == (0, [])


def test_sources_are_checked_again_when_something_has_changed(project: Project, version: Path) -> None:
    project.check()
    (project.root / "base" / "a.hpp").write_text("int a();  // Another one.")
    assert project.check() == (0, ["a.cpp"])
    project.write_commands("-O2")
    assert project.check() == (0, ["a.cpp", "b.cpp"])
    (project.root / ".clang-tidy").write_text("Checks: none")
    assert project.check() == (0, ["a.cpp", "b.cpp"])
    version.write_text("15")
    assert project.check() == (0, ["a.cpp", "b.cpp"])
    assert project.check() == (0, [])


def test_findings_are_found_again(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (project.root / "base" / "b.cpp").write_text("int b() { return 1; }  // BAD")
    assert project.check() == (1, ["a.cpp", "b.cpp"])
    assert project.check() == (1, ["b.cpp"])
    assert "b.cpp: a fault\n2 sources, 1 with findings" in capsys.readouterr().out


def test_checkouts_in_other_folders_share_what_was_checked(project: Project, tmp_path: Path, calls: Path) -> None:
    project.check()
    assert Project(tmp_path / "other" / "checkout", calls, tmp_path / "cache").check() == (0, [])


def test_old_marks_are_forgotten(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project.check()
    later = time.time() + 31 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    project.write_commands("-O2")
    assert project.check() == (0, ["a.cpp", "b.cpp"])
    assert not list((tmp_path / "cache").iterdir())


def test_a_missing_tool_is_a_skip(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert project.check() == (77, [])
