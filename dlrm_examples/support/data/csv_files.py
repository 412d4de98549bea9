# SPDX-License-Identifier: Apache-2.0
"""Reads columns of CSV files. Errors are one line and name the file and the problem."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from dlrm_examples.support.data.id_columns import id_values
from dlrm_examples.support.data.log_format import DataError


def find_csv_files(directory: Path, stem: str) -> list[Path]:
    """Lists the files ``<stem>*.csv`` and ``<stem>*.csv.gz`` of the directory, sorted by name.

    Raises:
        DataError: there is no such file.
    """
    found = sorted(path for ending in (".csv", ".csv.gz") for path in directory.glob(f"{stem}*{ending}"))
    if not found:
        raise DataError(f"{directory}: no file {stem}*.csv or {stem}*.csv.gz in this directory")
    return found


def read_csv(paths: Sequence[Path], *, integers: Sequence[str] = (), texts: Sequence[str] = ()) -> pa.Table:
    """Reads some columns of CSV files with a header line, and concatenates the files.

    Args:
        paths: plain or gzip-compressed files, at least one.
        integers: names of int64 columns; they may have no empty field.
        texts: names of text columns.
    Raises:
        DataError: there is no row; or a file cannot be read, lacks a column, or has a value of another type.
    """
    types = dict.fromkeys(integers, pa.int64()) | dict.fromkeys(texts, pa.string())
    options = pa_csv.ConvertOptions(include_columns=list(types), column_types=types)
    parts = []
    for path in paths:
        try:
            part = pa_csv.read_csv(path, convert_options=options)
        except (OSError, KeyError, pa.ArrowException) as error:
            reason = error if isinstance(error, OSError) or not error.args else error.args[0]
            raise DataError(f"{path}: {reason}") from error
        for name in integers:
            if part.column(name).null_count:
                raise DataError(f"{path}: an empty field in column {name!r}")
        parts.append(part)
    table = pa.concat_tables(parts)
    if not len(table):
        raise DataError(f"{paths[0]}: no row")
    return table


def integer_column(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Values (E,) of an integer column.

    Raises:
        DataError: the column has another type or a null.
    """
    return id_values(table.column(name), where=f"column {name!r}")
