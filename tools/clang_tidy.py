# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the C++ sources that do not use torch. Usage: tools/clang_tidy.py BUILD_DIR

A source without findings is not checked again until something that it was checked by has changed: clang-tidy, its
configuration, the command that compiles the source, or one of the files that it includes. An empty file in the cache
folder, ``$XDG_CACHE_HOME/headway/clang-tidy``, stands for each such state. Files that were not used for 30 days go.

Exit status: 1 where there are findings, 77 where clang-tidy is not installed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_CHECKED = re.compile(r"(base|libcomm|kernels|embedding|hybrid|serving)/(?!torch/|front/|load/).*\.cpp")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
#: It counts warnings in system headers even when quiet.
_NOISE = re.compile(r"\d+ warnings? (generated|treated)|$")
_KEPT_S = 30 * 86400
_LIMIT_S = 600  # One source takes some 10 s.


class Source(NamedTuple):
    """A source and the command that compiles it in ``folder``."""

    path: Path
    command: tuple[str, ...]
    folder: str


def find_sources(entries: list[dict[str, str]], root: Path) -> list[Source]:
    """Returns the sources to check, each once, though several targets may compile it."""
    found = {}
    for entry in entries:
        path = Path(entry["file"])
        if path.is_relative_to(root) and _CHECKED.match(path.relative_to(root).as_posix()):
            found.setdefault(path, Source(path, tuple(shlex.split(entry["command"])), entry["directory"]))
    return list(found.values())


@functools.cache
def _content(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def included_files(source: Source) -> list[str]:
    """Returns the source and the files that it includes.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    words = list(source.command)
    if "-o" in words:
        del words[words.index("-o") : words.index("-o") + 2]
    rule = subprocess.run(
        [*words, "-M"], cwd=source.folder, stdout=subprocess.PIPE, check=True, text=True, timeout=_LIMIT_S
    ).stdout
    files = rule.partition(":")[2].replace("\\\n", " ").split()
    return [os.path.join(source.folder, each) for each in files]


def state_of(source: Source, tool: bytes, root: Path) -> str:
    """Returns a hash of all that the findings in a source depend on. Checkouts in different folders share states."""
    state = hashlib.sha256(tool)
    for word in (*source.command, source.folder):
        state.update(word.replace(str(root), ".").encode() + b"\0")
    for name in included_files(source):
        state.update(os.path.relpath(name, root).encode() if name.startswith(str(root)) else name.encode())
        state.update(_content(name))
    return state.hexdigest()


def _findings(source: Source, database: Path) -> str | None:
    """Runs clang-tidy; returns what it found, or None."""
    ended = subprocess.run(
        ["clang-tidy", "-quiet", "-p", str(database), str(source.path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_LIMIT_S,
    )  # fmt: skip
    lines = [line for line in _COLORS.sub("", ended.stdout).splitlines() if not _NOISE.match(line)]
    if ended.returncode == 0 and not lines:
        return None
    return "\n".join(lines) or f"{source.path}: clang-tidy ended with status {ended.returncode}"


def _forget_old(cache: Path) -> None:
    for each in cache.iterdir():
        if time.time() - each.stat().st_mtime > _KEPT_S:
            each.unlink(missing_ok=True)


def main(build: Path, cache: Path, root: Path = ROOT) -> int:
    """Checks the sources of a build folder; returns the exit status."""
    if shutil.which("clang-tidy") is None:
        print("clang-tidy is not installed (Debian, Ubuntu: apt install clang-tidy)")
        return 77
    version = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE, check=True, timeout=60).stdout
    tool = version + (root / ".clang-tidy").read_bytes()
    sources = find_sources(json.loads((build / "compile_commands.json").read_text()), root)
    cache.mkdir(parents=True, exist_ok=True)
    # One entry for each source: clang-tidy would check it once for each target.
    database = build / "clang-tidy"
    database.mkdir(exist_ok=True)
    entries = [
        {"file": str(each.path), "directory": each.folder, "command": shlex.join(each.command)} for each in sources
    ]
    (database / "compile_commands.json").write_text(json.dumps(entries))

    def check(source: Source) -> str | None:
        mark = cache / state_of(source, tool, root)
        if mark.exists():
            mark.touch()
            return None
        if (found := _findings(source, database)) is None:
            mark.touch()
        return found

    num_findings = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(check, sources):
            if found is not None:
                num_findings += 1
                print(found, flush=True)
    _forget_old(cache)
    print(f"{len(sources)} sources, {num_findings} with findings")
    return 1 if num_findings else 0


if __name__ == "__main__":
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway" / "clang-tidy"
    sys.exit(main(Path(sys.argv[1]).resolve(), folder))
