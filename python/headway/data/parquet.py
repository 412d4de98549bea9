# SPDX-License-Identifier: Apache-2.0
"""``ParquetFolder``: the rows of a folder of Parquet files, and checks of what they hold.

Idea: a row is known by its number, counted over all row groups of all files in the order of their names. Footers alone
tell how many rows there are, so opening a folder reads no data. Rows are read by row group, some at a time, and only
the columns of the schema.

Example: files a (row groups of 3 and 2 rows) and b (4 rows). Row 4 is the second row of the second group of a.

Invariant: every error of the data names the file, the row group, and the row in it.
Complexity: a chunk costs one decoding pass over its pages. Values of lists are not copied by the reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.dlpack

from headway.data.schema import TARGET, SampleSchema

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:  # Models and batches need no files.
    pa = pq = None

Integers = npt.NDArray[np.int64]
TooLong = Literal["raise", "truncate_oldest"]
OnBadFile = Literal["raise", "skip"]


class DataError(ValueError):
    """The data cannot be read or contradict the schema. The message names the file and, if known, row group and row."""


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file, the unit in which files are read."""

    path: Path
    index: int
    num_rows: int
    first_row: int  #: Number of its first row in the folder.

    def __str__(self) -> str:
        return f"{self.path}, row group {self.index}"


@dataclass(frozen=True)
class Chunk:
    """Some rows that follow each other, N in all.

    Attributes:
        first_row: number of the first row in the folder.
        context: (N,) int64 by column.
        offsets: (N + 1,) int64 by list column, from 0; equal for all columns of history events, and for all of targets
            and labels.
        values: flat values of each list column, int64 in host memory. They may be memory of pyarrow: do not write.
        is_truncated: (N,) bool, rows whose oldest events were dropped; None: none of them.
    """

    first_row: int
    num_rows: int
    context: Mapping[str, Integers]
    offsets: Mapping[str, Integers]
    values: Mapping[str, torch.Tensor]
    is_truncated: npt.NDArray[np.bool_] | None


class ParquetFolder:
    """The rows of all ``*.parquet`` files in a folder and its subfolders.

    Files and folders whose names begin with ``_`` or ``.`` are left out, as Spark and pyarrow do: unfinished writes
    have such names.

    Args:
        folder: the folder.
        schema: columns to read.
        max_events: most events of a sample, history and targets; None: any number.
        too_long: ``raise``: a longer sample is an error when it is read. ``truncate_oldest``: its oldest events are
            dropped.
        on_bad_file: ``raise``, or ``skip``: files are left out if their footer cannot be read, or lacks a column.

    Attributes:
        row_groups: all row groups, in order.
        num_rows: rows of all files.
        num_bytes: uncompressed size of all columns, from the footers.
        fingerprint: changes with the names, sizes and row groups of the files.
        bad_files: why each file was left out.

    Raises:
        DataError: there is no file, no row, a file cannot be read, or a column is missing or of another type.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        folder: Path,
        schema: SampleSchema,
        *,
        max_events: int | None = None,
        too_long: TooLong = "raise",
        on_bad_file: OnBadFile = "raise",
    ) -> None:
        if pq is None:
            raise ImportError("reading Parquet files needs pyarrow: pip install 'headway[train]'")
        self.folder, self.schema = folder, schema
        self._max_events, self._too_long = max_events, too_long
        self.bad_files: list[str] = []
        if not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        found = sorted(folder.rglob("*.parquet"))
        paths = [path for path in found if not _is_hidden(path.relative_to(folder))]
        if not paths:
            hidden = f" but {len(found)} below names that begin with _ or ." if found else ""
            raise DataError(f"{folder} has no .parquet files{hidden}")
        self.row_groups: list[RowGroup] = []
        self._footers: dict[Path, Any] = {}  #: Kept, since a file is opened for each of its row groups.
        first_row, num_bytes, digest = 0, 0, hashlib.sha256()
        for path in paths:
            try:
                footer = self._footers[path] = self._footer(path)
            except DataError as error:
                if on_bad_file == "raise":
                    raise
                self.bad_files.append(str(error))
                continue
            for index in range(footer.num_row_groups):
                num_rows = footer.row_group(index).num_rows
                num_bytes += footer.row_group(index).total_byte_size
                self.row_groups.append(RowGroup(path, index, num_rows, first_row))
                digest.update(f"{path.relative_to(folder)} {index} {num_rows} {path.stat().st_size}\n".encode())
                first_row += num_rows
        self.num_rows = first_row
        self.num_bytes = num_bytes
        self.fingerprint = digest.hexdigest()[:16]
        if self.num_rows == 0:
            raise DataError("; ".join([f"the files of {folder} have no rows", *self.bad_files[:1]]))

    def _footer(self, path: Path) -> Any:
        try:
            with pq.ParquetFile(path) as file:
                self._expect_columns(path, file.schema_arrow)
                return file.metadata
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read: {_one_line(error)}") from error

    def _expect_columns(self, path: Path, found: Any) -> None:
        for name in self.schema.columns:
            if name not in found.names:
                raise DataError(f"{path} has no column {name}; it has {', '.join(found.names)}")
            dtype = found.field(name).type
            is_list = name in self.schema.list_columns
            is_of_lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
            inner = dtype.value_type if any(each(dtype) for each in is_of_lists) else None
            of_number = inner if is_list else dtype
            if of_number is None or not (pa.types.is_integer(of_number) or pa.types.is_boolean(of_number)):
                wanted = "lists of integers" if is_list else "integers"
                raise DataError(f"{path}: column {name} has type {dtype}, not {wanted}")

    def chunks(self, group: RowGroup, begin: int, end: int, *, num_rows: int) -> Iterator[Chunk]:
        """Yields rows ``begin`` to before ``end`` of a row group, up to ``num_rows`` at a time.

        Raises:
            DataError: the file cannot be read, or a row is invalid.
        """
        row = 0
        try:
            with pq.ParquetFile(group.path, metadata=self._footers[group.path]) as file:
                for batch in self._batches(file, group, num_rows):
                    first, last = max(begin, row), min(end, row + batch.num_rows)
                    if first < last:
                        yield self._chunk(group, batch.slice(first - row, last - first), first)
                    row += batch.num_rows
                    if row >= end:
                        return
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{group} cannot be read: {_one_line(error)}") from error

    def _batches(self, file: Any, group: RowGroup, num_rows: int) -> Iterator[Any]:
        names = list(self.schema.columns)
        if num_rows < group.num_rows:
            yield from file.iter_batches(batch_size=num_rows, row_groups=[group.index], columns=names)
        else:  # Faster than an only batch: the columns are decoded by several threads.
            yield from file.read_row_group(group.index, columns=names).combine_chunks().to_batches()

    def _chunk(self, group: RowGroup, batch: Any, first: int) -> Chunk:
        """Checks and converts a batch of Arrow; ``first`` is its first row in the row group, for messages."""
        schema = self.schema
        context = {name: _integers(batch.column(name), name, group, first) for name in schema.context}
        lists = {name: _list(batch.column(name), name, group, first) for name in schema.list_columns}
        for names in (schema.history_columns, (*schema.target_columns, *schema.labels)):
            for name in names[1:]:
                _expect_equal_lengths(lists[names[0]][0], lists[name][0], names[0], name, group, first)
        self._check_values(lists, group, first)
        is_truncated = self._limit_events(lists, group, first)
        return Chunk(
            group.first_row + first,
            batch.num_rows,
            context,
            {name: offsets for name, (offsets, _) in lists.items()},
            {name: _tensor(values) for name, (_, values) in lists.items()},
            is_truncated,
        )

    def _limit_events(
        self, lists: dict[str, tuple[Integers, Integers]], group: RowGroup, first: int
    ) -> npt.NDArray[np.bool_] | None:
        """Drops the oldest events of samples that are too long from ``lists``; returns which ones were, (N,), or None.

        Example: at most 3 events, a history [a, b, c] and a target: [b, c] is left.
        """
        most = self._max_events
        if most is None:
            return None
        offsets, target_offsets = lists[self.schema.events[0]][0], lists[TARGET + self.schema.events[0]][0]
        lengths, targets = np.diff(offsets), np.diff(target_offsets)
        is_long = lengths + targets > most
        if not is_long.any():
            return None
        wrong = is_long if self._too_long == "raise" else targets > most
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            hint = (
                '; too_long = "truncate_oldest" drops the oldest' if targets[row] <= most else ", all of them targets"
            )
            count = lengths[row] + targets[row] if targets[row] <= most else targets[row]
            raise DataError(f"{group}, row {first + row}: a sample has {count} events, and {most} are allowed{hint}")
        dropped = np.maximum(lengths + targets - most, 0)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        is_kept = within >= np.repeat(dropped, lengths)
        kept_offsets = np.concatenate(([0], (lengths - dropped).cumsum()))
        for name in self.schema.history_columns:
            lists[name] = (kept_offsets, lists[name][1][is_kept])
        return is_long

    def _check_values(self, lists: Mapping[str, tuple[Integers, Integers]], group: RowGroup, first: int) -> None:
        time = self.schema.time
        if time is not None:
            _expect_history_first(*lists[time], *lists[TARGET + time], group, first)
        for name in self.schema.labels:
            offsets, values = lists[name]
            wrong = np.flatnonzero((values != 0) & (values != 1))
            if len(wrong) > 0:
                place = _place(group, first, offsets, int(wrong[0]))
                raise DataError(f"{place}: label {name} is {values[wrong[0]]}, not 0 or 1")
        for name in (time, TARGET + time) if time is not None else ():
            offsets, values = lists[name]
            is_first = np.zeros(len(values) + 1, bool)  # A sample may start earlier than the one before it ends.
            is_first[offsets] = True
            back = np.flatnonzero((np.diff(values) < 0) & ~is_first[1:-1]) + 1
            if len(back) > 0:
                place = _place(group, first, offsets, int(back[0]))
                raise DataError(f"{place}: the times in {name} are not ascending")


def _expect_history_first(
    offsets: Integers, times: Integers, target_offsets: Integers, target_times: Integers, group: RowGroup, first: int
) -> None:
    """Raises DataError if a target is earlier than the end of its history."""
    has_both = (np.diff(offsets) > 0) & (np.diff(target_offsets) > 0)
    rows = np.flatnonzero(has_both)
    early = rows[target_times[target_offsets[rows]] < times[offsets[rows + 1] - 1]]
    if len(early) > 0:
        raise DataError(f"{group}, row {first + early[0]}: a target is earlier than the last event of the history")


def _place(group: RowGroup, first: int, offsets: Integers, value: int) -> str:
    """Names file, row group and row of the value with index ``value`` in a list column."""
    row = first + int(np.searchsorted(offsets, value, side="right")) - 1
    return f"{group}, row {row}"


def _integers(column: Any, name: str, group: RowGroup, first: int) -> Integers:
    if column.null_count > 0:
        row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{group}, row {row}: column {name} is null")
    return _int64(column)


def _list(column: Any, name: str, group: RowGroup, first: int) -> tuple[Integers, Integers]:
    """Returns offsets, from 0, and values. An empty list is fine; a null list or value is not."""
    if column.null_count > 0:
        row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{group}, row {row}: column {name} is null")
    if pa.types.is_fixed_size_list(column.type):  # It has no offsets.
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - offsets[0]
    if values.null_count > 0:
        value = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{_place(group, first, offsets, value)}: a value of column {name} is null")
    return offsets, _int64(values)


def _int64(column: Any) -> Integers:
    wide = column if column.type == pa.int64() else column.cast(pa.int64(), safe=False)
    values: Integers = wide.to_numpy(zero_copy_only=False)
    return values


def _tensor(values: Integers) -> torch.Tensor:
    """Returns a view as a tensor. pyarrow exports it without a warning if it is read-only, which numpy does not."""
    return torch.utils.dlpack.from_dlpack(pa.array(values))


def _expect_equal_lengths(
    one: Integers, other: Integers, one_name: str, other_name: str, group: RowGroup, first: int
) -> None:
    if not np.array_equal(one, other):  # Both begin at 0.
        row = np.flatnonzero(np.diff(one) != np.diff(other))[0]
        raise DataError(
            f"{group}, row {first + row}: {one_name} has {np.diff(one)[row]} values and {other_name} "
            f"{np.diff(other)[row]}"
        )


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
