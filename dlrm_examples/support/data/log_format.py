# SPDX-License-Identifier: Apache-2.0
"""Description of a click-log format, from which the columnar store can convert and load logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

LABEL = "label"


class LogRow(NamedTuple):
    """One impression; None marks a missing value."""

    label: int
    dense: tuple[float | None, ...]
    sparse: tuple[int | None, ...]


class MalformedLineError(ValueError):
    """A line that does not follow its format; the message says why, without file and line."""


class DataError(RuntimeError):
    """Data that cannot be used at all; the message is one line for the user."""


class ParsedBlock(NamedTuple):
    """Usable rows of a block of lines, and the reason for each malformed line, by its index in the block.

    Every line is either one row or malformed.
    """

    rows: pa.Table
    malformed: dict[int, str]


BlockParser = Callable[[list[bytes]], ParsedBlock]


@dataclass
class MalformedLines:
    """Counts malformed lines and keeps the first ``max_reports`` reports (``file:line: reason``)."""

    count: int = 0
    reports: list[str] = field(default_factory=list)
    max_reports: int = 20

    def add(self, path: Path, line_number: int, reason: str) -> None:
        """Counts one line of ``path``; ``line_number`` starts at 1."""
        self.count += 1
        if len(self.reports) < self.max_reports:
            self.reports.append(f"{path}:{line_number}: {reason}")

    def extend(self, other: MalformedLines) -> None:
        """Adds the count and the reports of another reader."""
        self.count += other.count
        self.reports.extend(other.reports[: self.max_reports - len(self.reports)])


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """One click-log format.

    Attributes:
        name: name on the command line and in the store.
        dense_names: columns that feed the bottom MLP, in order.
        sparse_names: one column per embedding table, in order.
        list_row_files: lists the files with one impression per line, in reading order.
        list_joined_files: lists the files that rows may refer to.
        make_block_parser: reads the joined files and returns the parser of lines. It adds malformed lines of the joined
            files to its argument.
        table_rows: rows of each table, if the format defines them; None: derived from the largest ids of the store.
    """

    name: str
    dense_names: tuple[str, ...]
    sparse_names: tuple[str, ...]
    list_row_files: Callable[[Path], list[Path]]
    list_joined_files: Callable[[Path], list[Path]]
    make_block_parser: Callable[[Path, MalformedLines], BlockParser]
    table_rows: tuple[int, ...] | None
