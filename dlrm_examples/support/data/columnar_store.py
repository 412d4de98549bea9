# SPDX-License-Identifier: Apache-2.0
"""Cache of click logs as Parquet files. A log is converted once and reused while its source files stay unchanged.

A store is a directory with ``manifest.json`` and one ``part-<block>.parquet`` per block of source lines. It does not
depend on the number of ranks or on table sizes, so every run can use it. It is columnar: a rank reads only the columns
of its own embedding tables.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dlrm_examples.support.data.log_files import BLOCK_LINES, read_blocks
from dlrm_examples.support.data.log_format import DataError, LogFormat, MalformedLines
from dlrm_examples.support.data.log_formats import format_named
from dlrm_examples.support.data.usable_lines import UsableLines

STORE_VERSION = 2
"""Part of the key of every store: raise it when the layout or the meaning of a column changes."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a store, as written to ``manifest.json``."""

    store_version: int
    format_name: str
    source: str
    part_rows: dict[str, int]  # rows of each part file, in row order
    complete: bool  # False when only the first lines of the source were converted
    max_ids: tuple[int, ...]  # largest id of each sparse column; 0 if it has no id
    malformed_count: int
    malformed_reports: tuple[str, ...]
    passed_over: tuple[str, ...]  # files without a usable row, with the reason

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return sum(self.part_rows.values())


@dataclass(frozen=True)
class ColumnarLog:
    """A finished store."""

    path: Path
    manifest: Manifest

    @property
    def format(self) -> LogFormat:
        """Format of the source log."""
        return format_named(self.manifest.format_name)

    def read_columns(self, names: Sequence[str], *, num_rows: int) -> dict[str, npt.NDArray[np.generic]]:
        """Reads the first ``num_rows`` values of each column. Missing values are 0; a store that is too short repeats.

        Returns:
            arrays of shape (num_rows,): int64 for sparse columns and the label, float64 for dense ones.
        """
        tables, available = [], 0
        for part, rows in self.manifest.part_rows.items():
            if available >= num_rows:
                break
            tables.append(pq.read_table(self.path / part, columns=list(names)))
            available += rows
        table = pa.concat_tables(tables)
        return {name: np.resize(table.column(name).fill_null(0).to_numpy(), num_rows) for name in names}


def open_or_convert(
    source: Path,
    log_format: LogFormat,
    *,
    store_root: Path,
    num_rows: int | None = None,
    strict: bool = False,
) -> ColumnarLog:
    """Opens the store of ``source``. Creates it first if there is none that is up to date.

    Args:
        source: log file or directory.
        log_format: how to read it.
        store_root: directory that holds the stores; created if missing.
        num_rows: number of rows that the caller needs; None: the whole log. With a limit, blocks of lines are converted
            until there are as many usable rows. Files without a usable row in their first block are read last.
        strict: treat a malformed line as an error.
    Raises:
        DataError: the source cannot be read, has no usable row, or has a malformed line and ``strict`` is set.
    """
    key = _source_key(source, log_format)
    log = _find_store(store_root, key, num_rows)
    if log is None:
        log = _convert(source, log_format, store_root, key, num_rows)
    if strict and log.manifest.malformed_count:
        reports = log.manifest.malformed_reports
        raise DataError(f"{log.manifest.malformed_count} malformed lines (--strict); the first: {reports[0]}")
    if log.manifest.num_rows == 0:
        first = log.manifest.malformed_reports[:1] or ("the log is empty",)
        raise DataError(f"{source}: no usable row; {first[0]}")
    return log


def default_store_root() -> Path:
    """Default directory of the stores: ``$XDG_CACHE_HOME/headway/columnar``."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "headway" / "columnar"


def _source_key(source: Path, log_format: LogFormat) -> str:
    """Digest over the format and the path, size and modification time of every file that is read."""
    digest = hashlib.sha256(f"{STORE_VERSION} {log_format.name} {BLOCK_LINES}".encode())
    for path in log_format.list_row_files(source) + log_format.list_joined_files(source):
        status = path.stat()
        digest.update(f"\n{path.resolve()}\t{status.st_size}\t{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _find_store(store_root: Path, key: str, num_rows: int | None) -> ColumnarLog | None:
    for path in sorted(store_root.glob(f"{key}-*")):
        log = _read_store(path)
        if log is None:
            continue
        if log.manifest.complete or (num_rows is not None and log.manifest.num_rows >= num_rows):
            return log
    return None


def _read_store(path: Path) -> ColumnarLog | None:
    """Opens a store; returns None if it is damaged. The caller then creates it again."""
    try:
        fields = json.loads((path / "manifest.json").read_text())
        for name in ("max_ids", "malformed_reports", "passed_over"):
            fields[name] = tuple(fields[name])
        manifest = Manifest(**fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if any(not (path / part).is_file() for part in manifest.part_rows):
        return None
    return ColumnarLog(path, manifest)


def _convert(source: Path, log_format: LogFormat, store_root: Path, key: str, num_rows: int | None) -> ColumnarLog:
    """Converts into a temporary directory, then renames it: readers never see an incomplete store."""
    try:
        store_root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix="building-", dir=store_root))
    except OSError as error:
        raise DataError(f"{store_root}: cannot keep the converted data there: {error.strerror}") from error
    try:
        manifest = _convert_rows(source, log_format, building, num_rows)
        (building / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1))
        path = store_root / f"{key}-{'all' if manifest.complete else manifest.num_rows}"
        shutil.rmtree(path, ignore_errors=True)
        building.rename(path)
    except OSError as error:
        raise DataError(f"{store_root}: cannot write the converted data: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return ColumnarLog(path, manifest)


def _convert_rows(source: Path, log_format: LogFormat, target: Path, num_rows: int | None) -> Manifest:
    """Converts blocks until there are ``num_rows`` usable rows."""
    lines, malformed = UsableLines(), MalformedLines()
    parse = log_format.make_block_parser(source, malformed)
    part_rows: dict[str, int] = {}
    max_ids = [0] * len(log_format.sparse_names)
    is_complete = True
    for block in read_blocks(lines.usable_first(log_format.list_row_files(source), parse)):
        if num_rows is not None and lines.total_rows() >= num_rows:
            is_complete = False
            break
        rows = lines.parse(block, parse)
        if not len(rows):
            continue
        part = f"part-{block.block_number:08d}.parquet"
        pq.write_table(rows, target / part, compression="zstd")
        part_rows[part] = len(rows)
        largest = (pc.max(rows[name]).as_py() for name in log_format.sparse_names)
        max_ids = [max(old, new or 0) for old, new in zip(max_ids, largest, strict=True)]
    malformed.extend(lines.malformed_lines())
    return Manifest(
        store_version=STORE_VERSION,
        format_name=log_format.name,
        source=str(source.resolve()),
        part_rows=part_rows,
        complete=is_complete,
        max_ids=tuple(max_ids),
        malformed_count=malformed.count,
        malformed_reports=tuple(malformed.reports),
        passed_over=tuple(lines.passed_over()),
    )
