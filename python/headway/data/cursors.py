# SPDX-License-Identifier: Apache-2.0
"""Reading of streams: ``RowGroups`` decodes pieces of row groups, and a ``Cursor`` reads those of a stream in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headway.data.order import Piece
from headway.data.parquet import Chunk, ParquetFolder, RowGroup
from headway.data.sample_batch import Slice

_MOST_KEPT_BYTES = 1 << 30  #: A folder of up to this decoded size keeps row groups that other streams still need.


class RowGroups:
    """Decodes pieces of row groups for the cursors of an epoch.

    A small folder is decoded once: each row group stays until its last piece was read, since several streams may have
    parts of it. A large one is decoded ``chunk_rows`` rows at a time.
    """

    def __init__(self, folder: ParquetFolder, pieces: Iterable[Piece], *, chunk_rows: int) -> None:
        self._folder, self._chunk_rows = folder, chunk_rows
        self._keeps = folder.num_bytes <= _MOST_KEPT_BYTES
        self._num_pieces = Counter(piece.group for piece in pieces)
        self._kept: dict[RowGroup, Chunk] = {}

    def read(self, piece: Piece, begin: int) -> Iterator[Slice]:
        """Yields the rows of a piece from row ``begin`` of its row group on."""
        if not self._keeps:
            for chunk in self._folder.chunks(piece.group, begin, piece.end, num_rows=self._chunk_rows):
                yield Slice(chunk, 0, chunk.num_rows)
            return
        if piece.group not in self._kept:
            (self._kept[piece.group],) = self._folder.chunks(
                piece.group, 0, piece.group.num_rows, num_rows=piece.group.num_rows
            )
        yield Slice(self._kept[piece.group], begin, piece.end)
        self.skip(piece)

    def skip(self, piece: Piece) -> None:
        """Forgets a piece that is not read, or not again."""
        self._num_pieces[piece.group] -= 1
        if self._num_pieces[piece.group] == 0:
            self._kept.pop(piece.group, None)


class Cursor:
    """Reads the pieces of a stream in order."""

    def __init__(self, row_groups: RowGroups, pieces: list[Piece], skipped: int) -> None:
        self._slices = self._all_slices(row_groups, pieces, skipped)
        self._rest: Slice | None = None  #: Rows that were read and not taken.

    @staticmethod
    def _all_slices(row_groups: RowGroups, pieces: list[Piece], skipped: int) -> Iterator[Slice]:
        for piece in pieces:
            begin = piece.begin + min(skipped, piece.num_rows)
            skipped -= begin - piece.begin
            if begin < piece.end:
                yield from row_groups.read(piece, begin)
            else:
                row_groups.skip(piece)

    def take(self, num_rows: int) -> list[Slice]:
        """Returns the next rows; they must be there."""
        slices: list[Slice] = []
        while num_rows > 0:
            rest = next(self._slices) if self._rest is None else self._rest
            end = min(rest.begin + num_rows, rest.end)
            slices.append(Slice(rest.chunk, rest.begin, end))
            num_rows -= end - rest.begin
            self._rest = Slice(rest.chunk, end, rest.end) if end < rest.end else None
        return slices
