"""What a reader of click logs must say about its format so that the columnar store can convert and load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class LogRow(NamedTuple):
    """One impression; None marks a missing value."""

    label: int
    dense: tuple[float | None, ...]
    sparse: tuple[int | None, ...]


class MalformedLineError(ValueError):
    """A line that does not follow its format; the message says why, without file and line."""


class DataError(RuntimeError):
    """Data that cannot be used at all; the message is one line for the user."""


LineParser = Callable[[bytes], LogRow]


@dataclass
class MalformedLines:
    """Counts lines that could not be read and keeps the first few reports (``file:line: reason``)."""

    count: int = 0
    reports: list[str] = field(default_factory=list)
    max_reports: int = 20

    def add(self, path: Path, line_number: int, reason: str) -> None:
        """Counts one line of ``path``; ``line_number`` starts at 1."""
        self.count += 1
        if len(self.reports) < self.max_reports:
            self.reports.append(f"{path}:{line_number}: {reason}")

    def extend(self, other: MalformedLines) -> None:
        """Adds what another reader found."""
        self.count += other.count
        self.reports.extend(other.reports[: self.max_reports - len(self.reports)])


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """A kind of click log.

    Attributes:
        name: how the command line and the store call it.
        dense_names: columns that feed the bottom MLP, in order.
        sparse_names: one column per embedding table, in order.
        list_row_files: files with one impression a line, in reading order.
        list_joined_files: files that every row may refer to.
        make_line_parser: reads the joined files and returns the parser of a line; files malformed ones in its argument.
        table_rows: rows of each table where the format defines them, else None (then the store's largest id decides).
    """

    name: str
    dense_names: tuple[str, ...]
    sparse_names: tuple[str, ...]
    list_row_files: Callable[[Path], list[Path]]
    list_joined_files: Callable[[Path], list[Path]]
    make_line_parser: Callable[[Path, MalformedLines], LineParser]
    table_rows: tuple[int, ...] | None
