# SPDX-License-Identifier: Apache-2.0
"""Converts id columns of Arrow tables to int64 without passing through float64.

NumPy promotes int64 with uint64 to float64, which rounds ids beyond 2^53. Arrow also converts an integer column with a
null to float64. Every id column must therefore pass through this module before NumPy sees it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlrm_examples.support.data.log_format import DataError

Column = pa.Array | pa.ChunkedArray


def id_values(column: Column, *, where: str) -> npt.NDArray[np.int64]:
    """Converts a column of integers of any width and signedness to (E,) int64 for E values.

    Args:
        column: Arrow array.
        where: file and column, for error messages.
    Raises:
        DataError: the column has another type, a value is null, or a value does not fit int64.
    """
    if not pa.types.is_integer(column.type):
        raise DataError(f"{where}: ids are integers, but the column has type {column.type}; cast it to int64")
    _expect_no_null(column, where)
    try:
        cast = pc.cast(column, pa.int64(), safe=True)
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: ids must fit int64: {error}") from error
    values: npt.NDArray[np.int64] = cast.to_numpy()
    return values


def id_lists(column: pa.ChunkedArray, *, where: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Flattens a column of lists of ids.

    Returns:
        (N,) ids of all lists, concatenated, and (N,) row index of each id.
    Raises:
        DataError: the column has another type, a list or an id is null, or an id does not fit int64.
    """
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise DataError(f"{where}: lists of integers are needed, but the column has type {kind}")
    _expect_no_null(column, where)
    ids = id_values(pc.list_flatten(column), where=where)
    lengths = pc.list_value_length(column).to_numpy()
    return ids, np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)


def _expect_no_null(column: Column, where: str) -> None:
    if column.null_count:
        raise DataError(f"{where}: {column.null_count} of {len(column)} values are null")
