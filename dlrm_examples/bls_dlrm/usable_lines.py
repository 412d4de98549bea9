"""Counts usable and malformed lines of each file of a log.

A directory may hold files that do not belong to the log: a readme, or Criteo's ``test.txt`` without labels. A file
without a usable row is skipped with a note. A malformed line in a file with usable rows is reported as malformed. If no
file has a usable row, all lines count as malformed, so that the first report tells what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from dlrm_examples.bls_dlrm.log_files import LineBlock, read_blocks
from dlrm_examples.bls_dlrm.log_format import LineParser, LogRow, MalformedLineError, MalformedLines


@dataclass
class UsableLines:
    """Counts by file. Several readers of one log merge their counts by ``extend()``."""

    num_rows: dict[Path, int] = field(default_factory=dict)
    malformed: dict[Path, MalformedLines] = field(default_factory=dict)
    #: Malformed lines of the first block, for each file whose first block has no usable row.
    unusable_begin: dict[Path, MalformedLines] = field(default_factory=dict)

    def parse(self, block: LineBlock, parse: LineParser) -> list[LogRow]:
        """Parses a block; returns its usable rows and counts its malformed lines."""
        rows = list(_rows_of(block, parse, self.malformed.setdefault(block.path, MalformedLines())))
        self.num_rows[block.path] = self.num_rows.get(block.path, 0) + len(rows)
        return rows

    def usable_first(self, paths: Iterable[Path], parse: LineParser) -> list[Path]:
        """Puts files with a usable row in their first block before the others, so that short runs skip these."""
        paths = list(paths)
        for path in paths:
            malformed = MalformedLines()
            rows = (row for block in islice(read_blocks([path]), 1) for row in _rows_of(block, parse, malformed))
            if next(rows, None) is None and malformed.count:
                self.unusable_begin[path] = malformed
        return sorted(paths, key=lambda path: path in self.unusable_begin)

    def extend(self, other: UsableLines) -> None:
        """Adds the counts of another reader."""
        self.unusable_begin |= other.unusable_begin
        for path, rows in other.num_rows.items():
            self.num_rows[path] = self.num_rows.get(path, 0) + rows
            self.malformed.setdefault(path, MalformedLines()).extend(other.malformed[path])

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


def _rows_of(block: LineBlock, parse: LineParser, malformed: MalformedLines) -> Iterator[LogRow]:
    for offset, line in enumerate(block.lines):
        try:
            yield parse(line)
        except MalformedLineError as error:
            malformed.add(block.path, block.first_line_number + offset, str(error))
