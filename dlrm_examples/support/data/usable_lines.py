# SPDX-License-Identifier: Apache-2.0
"""Counts usable and malformed lines of each file of a log.

A directory may hold files that do not belong to the log: a readme, or Criteo's ``test.txt`` without labels. A file
without a usable row is skipped with a note. A malformed line in a file with usable rows is reported as malformed. If no
file has a usable row, all lines count as malformed, so that the first report tells what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa

from dlrm_examples.support.data.log_files import LineBlock, read_blocks
from dlrm_examples.support.data.log_format import BlockParser, MalformedLines


@dataclass
class UsableLines:
    """Counts by file."""

    num_rows: dict[Path, int] = field(default_factory=dict)
    malformed: dict[Path, MalformedLines] = field(default_factory=dict)
    #: Malformed lines of the first block, for each file whose first block has no usable row.
    unusable_begin: dict[Path, MalformedLines] = field(default_factory=dict)

    def parse(self, block: LineBlock, parse: BlockParser) -> pa.Table:
        """Parses a block; returns its usable rows and counts its malformed lines."""
        rows = _parse(block, parse, self.malformed.setdefault(block.path, MalformedLines()))
        self.num_rows[block.path] = self.num_rows.get(block.path, 0) + len(rows)
        return rows

    def usable_first(self, paths: Iterable[Path], parse: BlockParser) -> list[Path]:
        """Puts files with a usable row in their first block before the others, so that short runs skip these."""
        paths = list(paths)
        for path in paths:
            malformed = MalformedLines()
            num_rows = sum(len(_parse(block, parse, malformed)) for block in islice(read_blocks([path]), 1))
            if num_rows == 0 and malformed.count:
                self.unusable_begin[path] = malformed
        return sorted(paths, key=lambda path: path in self.unusable_begin)

    def total_rows(self) -> int:
        """Number of usable rows of all files."""
        return sum(self.num_rows.values())

    def malformed_lines(self) -> MalformedLines:
        """Malformed lines of the files with a usable row, or of all files if none has one."""
        result = MalformedLines()
        for path in sorted(self.num_rows):
            if self.num_rows[path] or not self.total_rows():
                result.extend(self.malformed[path])
        return result

    def passed_over(self) -> list[str]:
        """One note for each file without a usable row; empty if no file has a usable row."""
        if not self.total_rows():
            return []
        lines = self.unusable_begin | self.malformed
        return [
            f"{path}: no usable row in the {lines[path].count} lines read; {lines[path].reports[0]}"
            for path in sorted(lines)
            if not self.num_rows.get(path, 0)
        ]


def _parse(block: LineBlock, parse: BlockParser, malformed: MalformedLines) -> pa.Table:
    rows, reasons = parse(block.lines)
    for index, reason in sorted(reasons.items()):
        malformed.add(block.path, block.first_line_number + index, reason)
    return rows
