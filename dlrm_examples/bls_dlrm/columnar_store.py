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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_examples.bls_dlrm.log_files import BLOCK_LINES, read_blocks
from dlrm_examples.bls_dlrm.log_format import DataError, LogFormat, LogRow, MalformedLines
from dlrm_examples.bls_dlrm.log_formats import format_named
from dlrm_examples.bls_dlrm.usable_lines import UsableLines

STORE_VERSION = 2
"""Part of the key of every store: raise it when the layout or the meaning of a column changes."""

LABEL = "label"


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
    num_workers: int = 1,
    strict: bool = False,
) -> ColumnarLog:
    """Opens the store of ``source``. Creates it first if there is none that is up to date.

    Args:
        source: log file or directory.
        log_format: how to read it.
        store_root: directory that holds the stores; created if missing.
        num_rows: number of rows that the caller needs; None: the whole log. With a limit, blocks of lines are converted
            until there are as many usable rows. Files without a usable row in their first block are read last.
        num_workers: number of converting processes; each converts a share of the blocks.
        strict: treat a malformed line as an error.
    Raises:
        DataError: the source cannot be read, has no usable row, or has a malformed line and ``strict`` is set.
    """
    key = _source_key(source, log_format)
    log = _find_store(store_root, key, num_rows)
    if log is None:
        log = _convert(source, log_format, store_root, key, num_rows, num_workers)
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


@dataclass(frozen=True)
class _Share:
    """Result of one worker: the blocks that it converted."""

    part_rows: dict[str, int]
    max_ids: tuple[int, ...]
    lines: UsableLines
    joined_malformed: MalformedLines
    num_blocks: int


def _convert(
    source: Path, log_format: LogFormat, store_root: Path, key: str, num_rows: int | None, num_workers: int
) -> ColumnarLog:
    """Converts into a temporary directory, then renames it: readers never see an incomplete store."""
    try:
        store_root.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix="building-", dir=store_root))
    except OSError as error:
        raise DataError(f"{store_root}: cannot keep the converted data there: {error.strerror}") from error
    try:
        shares, complete = _convert_rows(source, log_format, building, num_rows, num_workers)
        manifest = _merge(shares, source, log_format, complete=complete)
        (building / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1))
        path = store_root / f"{key}-{'all' if complete else manifest.num_rows}"
        shutil.rmtree(path, ignore_errors=True)
        building.rename(path)
    except OSError as error:
        raise DataError(f"{store_root}: cannot write the converted data: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return ColumnarLog(path, manifest)


def _convert_rows(
    source: Path, log_format: LogFormat, target: Path, num_rows: int | None, num_workers: int
) -> tuple[list[_Share], bool]:
    """Converts blocks until there are ``num_rows`` usable rows.

    Returns:
        the shares of the workers, and whether the whole log was converted.
    """
    shares: list[_Share] = []
    first, end = 0, None if num_rows is None else _blocks_of(num_rows)
    while True:
        added = _convert_shares(source, log_format, target, (first, end), num_workers)
        shares += added
        if num_rows is None or end is None or sum(share.num_blocks for share in added) < end - first:
            return shares, True
        found = sum(share.lines.total_rows() for share in shares)
        if found >= num_rows:
            return shares, False
        # Estimate the rows per block from the blocks so far. Without any usable row, double the number of blocks.
        more = -(-(num_rows - found) * end // found) if found else end
        first, end = end, end + more


def _blocks_of(num_lines: int) -> int:
    return -(-num_lines // BLOCK_LINES)


def _convert_shares(
    source: Path, log_format: LogFormat, target: Path, blocks: tuple[int, int | None], num_workers: int
) -> list[_Share]:
    """Converts blocks ``blocks[0]`` to ``blocks[1] - 1`` (None: to the end of the log)."""
    source_bytes = sum(path.stat().st_size for path in log_format.list_row_files(source))
    if num_workers == 1 or source_bytes < 4 << 20:
        return [_convert_share(source, log_format.name, target, blocks, 0, 1)]
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        tasks = [
            pool.submit(_convert_share, source, log_format.name, target, blocks, shard, num_workers)
            for shard in range(num_workers)
        ]
        return [task.result() for task in tasks]


def _convert_share(
    source: Path, format_name: str, target: Path, blocks: tuple[int, int | None], shard: int, num_shards: int
) -> _Share:
    log_format = format_named(format_name)
    lines, joined_malformed = UsableLines(), MalformedLines()
    parse = log_format.make_line_parser(source, joined_malformed)
    part_rows: dict[str, int] = {}
    max_ids = np.zeros(len(log_format.sparse_names), dtype=np.int64)
    num_blocks = 0
    row_files = lines.usable_first(log_format.list_row_files(source), parse)
    first, end = blocks
    for block in read_blocks(row_files, shard=shard, num_shards=num_shards, first_block=first, end_block=end):
        num_blocks += 1
        rows = lines.parse(block, parse)
        if not rows:
            continue
        table = _to_table(rows, log_format)
        part = f"part-{block.block_number:08d}.parquet"
        pq.write_table(table, target / part, compression="zstd")
        part_rows[part] = table.num_rows
        ids = [table.column(name).fill_null(0).to_numpy() for name in log_format.sparse_names]
        max_ids = np.maximum(max_ids, [column.max() for column in ids])
    return _Share(part_rows, tuple(int(value) for value in max_ids), lines, joined_malformed, num_blocks)


def _to_table(rows: list[LogRow], log_format: LogFormat) -> pa.Table:
    columns = {LABEL: pa.array([row.label for row in rows], pa.int8())}
    for name, values in zip(log_format.dense_names, zip(*(row.dense for row in rows), strict=True), strict=True):
        columns[name] = pa.array(values, pa.float64())
    for name, ids in zip(log_format.sparse_names, zip(*(row.sparse for row in rows), strict=True), strict=True):
        columns[name] = pa.array(ids, pa.int64())
    return pa.table(columns)


def _merge(shares: list[_Share], source: Path, log_format: LogFormat, *, complete: bool) -> Manifest:
    malformed, lines = MalformedLines(), UsableLines()
    malformed.extend(shares[0].joined_malformed)  # All workers read the same joined files: count them once.
    part_rows: dict[str, int] = {}
    for share in shares:
        lines.extend(share.lines)
        part_rows |= share.part_rows
    malformed.extend(lines.malformed_lines())
    return Manifest(
        store_version=STORE_VERSION,
        format_name=log_format.name,
        source=str(source.resolve()),
        part_rows=dict(sorted(part_rows.items())),
        complete=complete,
        max_ids=tuple(int(value) for value in np.max([share.max_ids for share in shares], axis=0)),
        malformed_count=malformed.count,
        malformed_reports=tuple(malformed.reports),
        passed_over=tuple(lines.passed_over()),
    )
