"""Usable and malformed lines of each file of a log.

A directory may hold files that are no part of the log: a readme, or Criteo's ``test.txt`` without labels. A file
without a usable row is passed over with a note. A malformed line in a file with usable rows is reported as such. Where
no file has a usable row, all lines count as malformed, so that the first report says what is wrong.
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
    """Counts by file; several readers of one log add theirs up."""

    num_rows: dict[Path, int] = field(default_factory=dict)
    malformed: dict[Path, MalformedLines] = field(default_factory=dict)
    #: Lines of the first block of each file that has no usable row there.
    unusable_begin: dict[Path, MalformedLines] = field(default_factory=dict)

    def parse(self, block: LineBlock, parse: LineParser) -> list[LogRow]:
        """The rows of a block, without its malformed lines."""
        rows = list(_rows_of(block, parse, self.malformed.setdefault(block.path, MalformedLines())))
        self.num_rows[block.path] = self.num_rows.get(block.path, 0) + len(rows)
        return rows

    def usable_first(self, paths: Iterable[Path], parse: LineParser) -> list[Path]:
        """Files with a usable row in their first block, then the others, so that a short run need not read these."""
        paths = list(paths)
        for path in paths:
            malformed = MalformedLines()
            rows = (row for block in islice(read_blocks([path]), 1) for row in _rows_of(block, parse, malformed))
            if next(rows, None) is None and malformed.count:
                self.unusable_begin[path] = malformed
        return sorted(paths, key=lambda path: path in self.unusable_begin)

    def extend(self, other: UsableLines) -> None:
        """Adds what another reader found."""
        self.unusable_begin |= other.unusable_begin
        for path, rows in other.num_rows.items():
            self.num_rows[path] = self.num_rows.get(path, 0) + rows
            self.malformed.setdefault(path, MalformedLines()).extend(other.malformed[path])

    def total_rows(self) -> int:
        """Usable rows of all files."""
        return sum(self.num_rows.values())

    def malformed_lines(self) -> MalformedLines:
        """Malformed lines of the files with a usable row, or of all files if none has one."""
        result = MalformedLines()
        for path in sorted(self.num_rows):
            if self.num_rows[path] or not self.total_rows():
                result.extend(self.malformed[path])
        return result

    def passed_over(self) -> list[str]:
        """One note for each file without a usable row; none if no file has one."""
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
