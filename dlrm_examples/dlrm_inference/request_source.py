# SPDX-License-Identifier: Apache-2.0
"""Sources of requests: for each step a batch of dense inputs, and of ids for each table.

A batch has ``num_ranks * mini_batch`` rows; rank r answers rows ``r * mini_batch`` to ``(r + 1) * mini_batch - 1``. A
source gives the same batches to every rank, so ranks need not exchange ids.

Shapes: T tables, F dense inputs per row. A lookup is one id of a row in a table; a row has the same number of lookups
in a table as the other rows of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dlrm_examples.dlrm_inference.model import DlrmConfig
from dlrm_examples.support.data.columnar_store import ColumnarLog

Ids = npt.NDArray[np.int64]


class RequestSource(Protocol):
    """Interface of a request source."""

    @property
    def num_rows(self) -> int:
        """Number of rows of a batch, over all ranks."""

    def lookups(self, step: int) -> Ids:
        """(T,) number of ids per row in each table, for this batch; known to every rank."""

    def ids(self, step: int, table: int) -> Ids:
        """(rows, lookups) ids in ``[0, rows of the table)``."""

    def dense(self, step: int, first_row: int, end_row: int) -> npt.NDArray[np.float32]:
        """(end_row - first_row, F) dense inputs of rows ``first_row`` to ``end_row - 1`` of the batch."""


class LogRequests:
    """Batches from a click log: one id per row and table, taken modulo the rows of the table."""

    def __init__(
        self, log: ColumnarLog, config: DlrmConfig, *, tables: Sequence[int], num_rows: int, num_steps: int
    ) -> None:
        """Loads what one rank needs.

        Args:
            log: its rows are repeated if it has fewer than ``num_rows * num_steps`` rows.
            config: sizes of the model.
            tables: indices of the tables whose ids are loaded: those that the rank owns.
            num_rows: rows of a batch.
            num_steps: number of batches.
        """
        log_format = log.format
        names = [log_format.sparse_names[table] for table in tables]
        columns = log.read_columns([*log_format.dense_names, *names], num_rows=num_rows * num_steps)
        self.num_rows = num_rows
        self._lookups = np.ones(config.num_tables, dtype=np.int64)
        self._ids = {
            table: columns[name].astype(np.int64) % config.table_rows[table]
            for table, name in zip(tables, names, strict=True)
        }
        self._dense = scale_dense(np.stack([columns[name] for name in log_format.dense_names], axis=1))

    def lookups(self, step: int) -> Ids:
        """One id per row and table."""
        return self._lookups

    def ids(self, step: int, table: int) -> Ids:
        """(rows, 1) ids of a loaded table."""
        return self._ids[table][step * self.num_rows : (step + 1) * self.num_rows, None]

    def dense(self, step: int, first_row: int, end_row: int) -> npt.NDArray[np.float32]:
        """Dense inputs: ``log(1 + x)`` of the counts."""
        return self._dense[step * self.num_rows + first_row : step * self.num_rows + end_row]


class RandomRequests:
    """Random batches with a random number of lookups per table and batch: setting 1 of the paper (arXiv 2512.19342)."""

    def __init__(self, config: DlrmConfig, *, num_rows: int, max_lookups: int, seed: int) -> None:
        """``max_lookups`` is the largest number of ids per row and table; the smallest is 1."""
        self.num_rows = num_rows
        self._config = config
        self._max_lookups = max_lookups
        self._seed = seed

    def lookups(self, step: int) -> Ids:
        """(T,) drawn uniformly from 1 to ``max_lookups``."""
        random = np.random.default_rng((self._seed, step, 0))
        return random.integers(1, self._max_lookups + 1, self._config.num_tables)

    def ids(self, step: int, table: int) -> Ids:
        """(rows, lookups) drawn uniformly from the table's rows."""
        random = np.random.default_rng((self._seed, step, 1, table))
        shape = (self.num_rows, int(self.lookups(step)[table]))
        return random.integers(0, self._config.table_rows[table], shape)

    def dense(self, step: int, first_row: int, end_row: int) -> npt.NDArray[np.float32]:
        """Uniform in [0, 1)."""
        random = np.random.default_rng((self._seed, step, 2))
        return random.random((self.num_rows, self._config.num_dense), dtype=np.float32)[first_row:end_row]


def scale_dense(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """``log(1 + max(x, 0))``, as in DLRM; missing values are 0."""
    scaled: npt.NDArray[np.float32] = np.log1p(np.maximum(values.astype(np.float64), 0.0)).astype(np.float32)
    return scaled
