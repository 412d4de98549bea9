# SPDX-License-Identifier: Apache-2.0
"""Counts the comment lines of C++ and CUDA sources, by part of the project.

A comment line holds a comment and nothing else. Lines behind code (``int n;  ///< Rows.``) are counted apart, the SPDX
line of each file is not counted, and all lines of a file, empty ones included, are the total. Without ``--tests`` only
the sources of the product count: what lies in ``tests/`` or ``benchmarks/`` is left out.

Example: ``tools/count_comments.py --folders kernels`` lists the folders of ``kernels/``, the smallest share first;
``tools/count_comments.py --at-least 12`` fails if fewer than 12% of the product's lines are comment lines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".cpp", ".hpp", ".cu", ".cuh")
_NOT_PRODUCT = {"tests", "benchmarks"}
_LICENSE = "SPDX-License-Identifier"


@dataclass(frozen=True)
class Counts:
    """Lines of some sources."""

    lines: int = 0
    comments: int = 0
    """Lines that hold only a comment."""
    trailing: int = 0
    """Lines with a comment behind code."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.lines + other.lines, self.comments + other.comments, self.trailing + other.trailing)

    @property
    def share(self) -> float:
        """Comment lines in percent of all lines."""
        return 100 * self.comments / self.lines if self.lines else 0.0


def sources(folders: Sequence[str]) -> list[Path]:
    """Lists the C++ and CUDA files under ``folders`` that git tracks or does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *folders]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    paths = (ROOT / name for name in listing.stdout.split("\0") if name.endswith(ENDINGS))
    return sorted(path for path in paths if path.exists())


def count(text: str) -> Counts:
    """Returns the counts of one source."""
    lines = text.splitlines()
    comments = trailing = 0
    is_in_block = False
    for line in lines:
        stripped = line.strip()
        if is_in_block or stripped.startswith(("//", "/*")):
            comments += _LICENSE not in stripped
            is_in_block = "*/" not in stripped and (is_in_block or stripped.startswith("/*"))
        elif "//" in _without_strings(stripped):
            trailing += 1
    return Counts(len(lines), comments, trailing)


def _without_strings(line: str) -> str:
    """Returns a line of code without its string literals, in which ``//`` is no comment."""
    kept: list[str] = []
    is_inside = is_escaped = False
    for character in line:
        if character == '"' and not is_escaped:
            is_inside = not is_inside
        elif not is_inside:
            kept.append(character)
        is_escaped = character == "\\" and not is_escaped
    return "".join(kept)


def is_product(path: Path) -> bool:
    """Whether a source, given relative to the repository, belongs to the product."""
    return not _NOT_PRODUCT & set(path.parts)


def count_by(keys: Iterable[tuple[str, Path]]) -> dict[str, Counts]:
    """Adds up the counts of the sources (key, path) by key, such as a folder."""
    sums: dict[str, Counts] = defaultdict(Counts)
    for key, path in keys:
        sums[key] += count(path.read_text(encoding="utf-8"))
    return dict(sums)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 1 if the share is below ``--at-least``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["."], help="files or folders; default: the whole repository")
    parser.add_argument("--folders", action="store_true", help="list folders, the smallest share first")
    parser.add_argument("--tests", action="store_true", help="count tests and benchmarks too")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="fail below this share")
    arguments = parser.parse_args(argv)
    files = {path: path.resolve().relative_to(ROOT) for path in sources(arguments.paths)}
    chosen = {path: name for path, name in files.items() if arguments.tests or is_product(name)}
    depth = None if arguments.folders else 1
    sums = count_by(("/".join(name.parts[:-1][:depth]) or ".", path) for path, name in chosen.items())
    for key, counts in sorted(sums.items(), key=lambda item: item[1].share):
        print(_row(key, counts))
    total = sum(sums.values(), Counts())
    print(_row(f"{len(chosen)} files", total))
    if total.share < arguments.at_least:
        print(f"comments: {total.share:.2f}% of the lines, and at least {arguments.at_least:g}% are wanted")
        return 1
    return 0


def _row(key: str, counts: Counts) -> str:
    return (
        f"{key:44} {counts.lines:7} lines {counts.comments:6} comment lines {counts.share:6.2f}%"
        f" {counts.trailing:6} behind code"
    )


if __name__ == "__main__":
    sys.exit(main())
