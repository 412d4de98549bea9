# SPDX-License-Identifier: Apache-2.0
"""Reading of streams: a ``Cursor`` reads the rows of one in order. A stream is a list of ``Piece``s (``order.py``).

Each cursor has its next rows decoded by a pool of threads while the present ones are used, so as many row groups are
decoded at once as the pool has threads. pyarrow decodes without Python's lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

from headway.data.order import Piece
from headway.data.parquet import Chunk, ParquetFolder, RowGroup
from headway.data.sample_batch import Slice

_MOST_KEPT_BYTES = 1 << 30  #: A folder of up to this size (``num_bytes``) keeps row groups that other streams need.


class _RowGroups:
    """Decodes pieces of row groups for the cursors of an epoch. Thread-safe.

    A small folder is decoded once: each row group stays until its last piece was read, since several streams may have
    parts of it. A large one is decoded ``chunk_rows`` rows at a time.
    """

    def __init__(self, folder: ParquetFolder, pieces: Iterable[Piece], *, chunk_rows: int) -> None:
        self._folder, self._chunk_rows = folder, chunk_rows
        self._keeps = folder.num_bytes <= _MOST_KEPT_BYTES
        #: Pieces of each row group that are yet to be read.
        self._num_pieces = Counter(piece.group for piece in pieces)
        self._kept: dict[RowGroup, Chunk] = {}
        self._lock = threading.Lock()  #: Guards ``_num_pieces`` and ``_kept``.
        self._decoding = {group: threading.Lock() for group in self._num_pieces}  #: Held while a group is decoded.

    def read(self, piece: Piece, begin: int) -> Iterator[Slice]:
        """Yields the rows of a piece from row ``begin`` of its row group on."""
        if not self._keeps:
            for chunk in self._folder.chunks(piece.group, begin, piece.end, num_rows=self._chunk_rows):
                yield Slice(chunk, 0, chunk.num_rows)
            return
        with self._decoding[piece.group]:
            with self._lock:
                kept = self._kept.get(piece.group)
            if kept is None:
                num_rows = piece.group.num_rows
                (kept,) = self._folder.chunks(piece.group, 0, num_rows, num_rows=num_rows)
                with self._lock:
                    self._kept[piece.group] = kept
        self.skip(piece)
        yield Slice(kept, begin, piece.end)

    def skip(self, piece: Piece) -> None:
        """Forgets a piece that is not read, or not again."""
        with self._lock:
            self._num_pieces[piece.group] -= 1
            if self._num_pieces[piece.group] == 0:
                self._kept.pop(piece.group, None)


class Cursor:
    """Reads the pieces of a stream in order, after its first ``skipped`` rows. For one thread; ``pool`` decodes."""

    def __init__(self, row_groups: _RowGroups, pieces: list[Piece], skipped: int, pool: Executor) -> None:
        self._slices = self._all_slices(row_groups, pieces, skipped)
        self._pool = pool
        self._next = self._decode()  #: The rows behind ``_rest``.
        self._rest: Slice | None = None  #: Rows that were read and not taken.

    @staticmethod
    def _all_slices(row_groups: _RowGroups, pieces: list[Piece], skipped: int) -> Iterator[Slice]:
        for piece in pieces:
            begin = piece.begin + min(skipped, piece.num_rows)
            skipped -= begin - piece.begin
            if begin < piece.end:
                yield from row_groups.read(piece, begin)
            else:
                row_groups.skip(piece)

    def take(self, num_rows: int) -> list[Slice]:
        """Returns the next ``num_rows`` rows, in any number of slices.

        Raises:
            IndexError: the stream has fewer rows left.
        """
        slices: list[Slice] = []
        while num_rows > 0:
            rest = self._take_next() if self._rest is None else self._rest
            end = min(rest.begin + num_rows, rest.end)
            slices.append(Slice(rest.chunk, rest.begin, end))
            num_rows -= end - rest.begin
            self._rest = Slice(rest.chunk, end, rest.end) if end < rest.end else None
        return slices

    def _take_next(self) -> Slice:
        decoded = self._next.result()
        if decoded is None:
            raise IndexError("the stream has no more rows")
        self._next = self._decode()
        return decoded

    def _decode(self) -> Future[Slice | None]:
        return self._pool.submit(next, self._slices, None)


def open_streams(
    folder: ParquetFolder, streams: Mapping[int, list[Piece]], taken: Sequence[int], pool: Executor, *, chunk_rows: int
) -> dict[int, Cursor]:
    """Returns a cursor for each stream. They decode a row group that they share once, if the folder is small.

    Args:
        folder: the rows.
        streams: pieces of each stream, in order.
        taken: by stream, rows that were taken before.
        pool: threads that decode.
        chunk_rows: rows that a stream of a large folder decodes at a time.
    """
    pieces = (piece for of_stream in streams.values() for piece in of_stream)
    row_groups = _RowGroups(folder, pieces, chunk_rows=chunk_rows)
    return {stream: Cursor(row_groups, of_stream, taken[stream], pool) for stream, of_stream in streams.items()}
