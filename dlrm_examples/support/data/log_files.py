# SPDX-License-Identifier: Apache-2.0
"""Splits the lines of plain or gzip-compressed log files into blocks."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from dlrm_examples.support.data.log_format import DataError

BLOCK_LINES = 8192
"""Lines parsed at a time, and so the maximum number of rows in one part of the columnar store."""


class LineBlock(NamedTuple):
    """Consecutive lines of one file."""

    block_number: int  # from 0, counted over all files
    path: Path
    first_line_number: int  # starts at 1
    lines: list[bytes]  # line ends are kept


def list_log_files(source: Path, *, suffixes: tuple[str, ...]) -> list[Path]:
    """Lists the log files of ``source``: the file itself, or the files of the directory that end in ``suffixes``.

    Hidden files are skipped: editors, macOS and downloads leave such files next to the data.

    Raises:
        DataError: there is no such path, or no such file in the directory.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"{source}: no such file or directory")
    endings = tuple(suffix + compression for suffix in suffixes for compression in ("", ".gz"))
    found = sorted(
        path
        for path in source.iterdir()
        if path.is_file() and path.name.endswith(endings) and not path.name.startswith(".")
    )
    if not found:
        raise DataError(f"{source}: no file ending in {', '.join(endings)} in this directory")
    return found


def read_blocks(paths: Iterable[Path]) -> Iterator[LineBlock]:
    """Yields the lines of plain or gzip-compressed files in blocks, file after file.

    A UTF-8 byte order mark at the beginning of a file is not part of its first line.

    Raises:
        DataError: a file cannot be read or decompressed.
    """
    index = 0
    for path in paths:
        first_line_number = 1
        try:
            with _open(path) as stream:
                _skip_byte_order_mark(stream)
                while lines := list(islice(stream, BLOCK_LINES)):
                    yield LineBlock(index, path, first_line_number, lines)
                    first_line_number += len(lines)
                    index += 1
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read near line {first_line_number}: {error}") from error


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _skip_byte_order_mark(stream: IO[bytes]) -> None:
    if stream.read(len(BOM_UTF8)) != BOM_UTF8:
        stream.seek(0)
