"""Splits the lines of plain or gzip-compressed log files into blocks, and deals the blocks to several readers."""

from __future__ import annotations

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from dlrm_examples.bls_dlrm.log_format import DataError

BLOCK_LINES = 8192
"""Lines that one reader takes at a time; also the most rows in one part of the columnar store."""


class LineBlock(NamedTuple):
    """Consecutive lines of one file."""

    block_number: int  # index among all blocks of all files
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


def read_blocks(
    paths: Iterable[Path],
    *,
    shard: int = 0,
    num_shards: int = 1,
    first_block: int = 0,
    end_block: int | None = None,
) -> Iterator[LineBlock]:
    """Yields every ``num_shards``-th block of the files, starting at block ``shard``.

    The readers with shard 0 to ``num_shards - 1`` together see each line exactly once. The content of a block does not
    depend on ``num_shards``. A UTF-8 byte order mark at the beginning of a file is not part of its first line.

    Args:
        paths: plain or gzip-compressed files, in reading order.
        shard: index of this reader.
        num_shards: number of readers.
        first_block: index of the first block to read, counted over all readers.
        end_block: index behind the last block to read, counted over all readers; None: to the end of the last file.
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
                    if end_block is not None and index >= end_block:
                        return
                    if index >= first_block and index % num_shards == shard:
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
