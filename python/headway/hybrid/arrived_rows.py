# SPDX-License-Identifier: Apache-2.0
"""``ArrivedRows``: rows of a small table that embedding workers have sent, by row index.

A replica has no id, so it cannot make the initial embedding of a row by itself. It is here from its arrival on. Rows
that a checkpoint had are *stored*: they come with optimizer state, lookups and step.

Example: an answer has rows 0 and 3. Both are taken, and go to the other dense workers with the next step. A later
answer has row 3 again, which is ignored.

Invariants: a row is taken once. Rows of other workers are taken as one's own, and not sent again.
Complexity: O(D + S) for a row. N rows, D columns, S floats of optimizer state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # A type without a name at run time.
    from headway._hybrid import IndexedRows

_NUM_COLUMNS = 4  #: Index, mark, count and step of a row: words of 4 bytes.


def words_of_rows(num_rows: int, dim: int, state_size: int) -> int:
    """Returns the words of 4 bytes that rows take in a message."""
    return num_rows * (_NUM_COLUMNS + dim + state_size)


class ArrivedRows:
    """Rows of one small table.

    Args:
        dim: D.
        state_size: S.
    """

    def __init__(self, dim: int, state_size: int) -> None:
        self.dim, self.state_size = dim, state_size
        self._position_of: dict[int, int] = {}
        self._embeddings = np.empty((0, dim), np.float32)  #: By position, with room behind; likewise below.
        self._are_stored = np.empty(0, bool)
        self._unsent: list[IndexedRows] = []

    def take(self, rows: IndexedRows, *, is_own: bool) -> None:
        """Takes rows that are not here. ``is_own``: other workers do not have them."""
        fresh = [each for each, index in enumerate(rows[0].tolist()) if index not in self._position_of]
        if not fresh:
            return
        new = _select(rows, np.asarray(fresh))
        first = len(self._position_of)
        for index in new[0].tolist():
            self._position_of[index] = len(self._position_of)
        end = len(self._position_of)
        if end > len(self._are_stored):  # Room doubles, so a row is copied a few times at most.
            room = 2 * end - first
            self._embeddings = np.concatenate([self._embeddings[:first], np.empty((room, self.dim), np.float32)])
            self._are_stored = np.concatenate([self._are_stored[:first], np.empty(room, bool)])
        self._embeddings[first:end] = new[4]
        self._are_stored[first:end] = new[1] != 0
        if is_own:
            self._unsent.append(new)

    def find(self, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Returns embeddings (N, D) as they have arrived, and whether rows are stored, (N,).

        Raises:
            RuntimeError: a row has not arrived.
        """
        try:
            positions = np.asarray([self._position_of[index] for index in indices.tolist()], np.int64)
        except KeyError as error:
            raise RuntimeError(f"row {error} of a small table has not come from an embedding worker") from None
        return self._embeddings[positions], self._are_stored[positions]

    def take_unsent(self) -> IndexedRows:
        """Returns the rows that other workers do not have, which then count as sent."""
        unsent, self._unsent = self._unsent, []
        empty = np.empty(0, np.int64)
        none: Any = (empty, empty, empty, empty, np.empty((0, self.dim), np.float32),
                     np.empty((0, self.state_size), np.float32))  # fmt: skip
        joined: Any = tuple(np.concatenate(columns) for columns in zip(none, *unsent, strict=True))
        return joined  # type: ignore[no-any-return]

    def encode(self, rows: IndexedRows) -> list[npt.NDArray[np.int32]]:
        """Returns rows as words of 4 bytes."""
        numbers = [column.astype(np.uint32).view(np.int32) for column in rows[:_NUM_COLUMNS]]
        return [*numbers, rows[4].reshape(-1).view(np.int32), rows[5].reshape(-1).view(np.int32)]

    def decode(self, words: npt.NDArray[np.int32], num_rows: int) -> IndexedRows:
        """Returns the rows of a message."""
        ends = np.cumsum([num_rows] * _NUM_COLUMNS + [num_rows * self.dim])
        *numbers, embeddings, states = np.split(words, ends)
        index, mark, count, step = (column.view(np.uint32).astype(np.int64) for column in numbers)
        return (index, mark, count, step, embeddings.copy().view(np.float32).reshape(num_rows, self.dim),
                states.copy().view(np.float32).reshape(num_rows, self.state_size))  # fmt: skip


def stored_rows(rows: IndexedRows) -> IndexedRows:
    """Returns those rows that a checkpoint had."""
    return _select(rows, np.flatnonzero(rows[1]))


def _select(rows: IndexedRows, positions: npt.NDArray[np.int64]) -> IndexedRows:
    selected: Any = tuple(column[positions] for column in rows)
    return selected  # type: ignore[no-any-return]
