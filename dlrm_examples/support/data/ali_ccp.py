# SPDX-License-Identifier: Apache-2.0
"""Reader of Ali-CCP logs: joins skeleton rows with the features that the rows of an impression group share.

``sample_skeleton_*.csv`` holds ``sample id,click,conversion,common feature id,number of features,features`` and
``common_features_*.csv`` holds ``common feature id,number of features,features``. Features are separated by the byte 1;
each is ``field``, byte 2, ``id``, byte 3, ``value``.

As in arXiv 2512.19342, each of the 23 fields becomes one table with one id per row. If a field repeats (a user's
history), the reader keeps the feature with the largest value, and the first one of equal values. The label is the
click. The dense inputs are the kept values of the eight fields that carry counts.
"""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa

from dlrm_examples.support.data.log_files import list_log_files, read_blocks
from dlrm_examples.support.data.log_format import (
    LABEL,
    BlockParser,
    DataError,
    LogFormat,
    LogRow,
    MalformedLineError,
    MalformedLines,
    ParsedBlock,
)

# fmt: off
FIELDS = (
    "101", "121", "122", "124", "125", "126", "127", "128", "129", "205", "206", "207", "210", "216", "301", "508",
    "509", "702", "853", "109_14", "110_14", "127_14", "150_14",
)
# fmt: on
WEIGHTED_FIELDS = ("508", "509", "702", "853", "109_14", "110_14", "127_14", "150_14")

SKELETON_PREFIX = "sample_skeleton"
COMMON_PREFIX = "common_features"

_FEATURE_SEPARATOR = b"\x01"
_ID_SEPARATOR = b"\x02"
_VALUE_SEPARATOR = b"\x03"
_LARGEST_ID = (1 << 63) - 1  # The columns of the store are int64.
_ID_DIGITS = len(str(_LARGEST_ID))
_FIELD_BYTES = frozenset(field.encode() for field in FIELDS)
_ORDERED_FIELD_BYTES = tuple(field.encode() for field in FIELDS)
_WEIGHTED_FIELD_BYTES = tuple(field.encode() for field in WEIGHTED_FIELDS)

Features = dict[bytes, tuple[int, float]]
"""For each field the id kept and its value."""


def parse_features(text: bytes, *, expected_count: int) -> Features:
    """Parses a list of features; keeps the one with the largest value of each known field.

    Raises:
        MalformedLineError: a feature is incomplete, an id exceeds int64, or their number is not ``expected_count``.
    """
    parts = text.split(_FEATURE_SEPARATOR) if text else []
    if len(parts) != expected_count:
        raise MalformedLineError(f"{len(parts)} features, but the line announces {expected_count}")
    kept: Features = {}
    for part in parts:
        field, _, rest = part.partition(_ID_SEPARATOR)
        id_text, separator, value_text = rest.partition(_VALUE_SEPARATOR)
        if not separator or not id_text.isdigit():
            raise MalformedLineError(f"feature {part[:40]!r} is not 'field 0x02 id 0x03 value'")
        if field not in _FIELD_BYTES:
            continue
        value = _parse_value(value_text)
        if field not in kept or value > kept[field][1]:
            kept[field] = (_parse_id(id_text), value)
    return kept


def parse_common_line(line: bytes) -> tuple[bytes, Features]:
    """Parses a line of ``common_features_*.csv``; returns the common feature id and its features."""
    fields = _split(line, num_fields=3)
    return fields[0], parse_features(fields[2], expected_count=_parse_count(fields[1]))


def parse_skeleton_line(line: bytes, common: dict[bytes, Features]) -> LogRow:
    """Parses a line of ``sample_skeleton_*.csv`` and joins it with the common features that it names.

    Raises:
        MalformedLineError: a field is wrong, or ``common`` lacks the common feature id.
    """
    fields = _split(line, num_fields=6)
    if fields[1] not in (b"0", b"1"):
        raise MalformedLineError(f"click {fields[1][:24]!r} is neither 0 nor 1")
    if fields[3] not in common:
        raise MalformedLineError(f"common feature id {fields[3].decode(errors='backslashreplace')} is not known")
    features = common[fields[3]] | parse_features(fields[5], expected_count=_parse_count(fields[4]))
    return LogRow(
        label=int(fields[1]),
        dense=tuple([features[name][1] if name in features else None for name in _WEIGHTED_FIELD_BYTES]),
        sparse=tuple([features[name][0] if name in features else None for name in _ORDERED_FIELD_BYTES]),
    )


def read_common_features(source: Path, malformed: MalformedLines) -> dict[bytes, Features]:
    """Reads all common features of a directory. Counts malformed lines in ``malformed``.

    Returns:
        features by common feature id.
    """
    common: dict[bytes, Features] = {}
    for block in read_blocks(_list_common_files(source)):
        for offset, line in enumerate(block.lines):
            try:
                common_id, features = parse_common_line(line)
            except MalformedLineError as error:
                malformed.add(block.path, block.first_line_number + offset, str(error))
                continue
            common[common_id] = features
    return common


def is_ali_ccp_directory(source: Path) -> bool:
    """Whether ``source`` is a directory with skeleton files."""
    return source.is_dir() and any(source.glob(f"{SKELETON_PREFIX}*"))


def _split(line: bytes, *, num_fields: int) -> list[bytes]:
    fields = line.rstrip(b"\r\n").split(b",")
    if len(fields) != num_fields:
        raise MalformedLineError(f"{len(fields)} comma-separated fields, expected {num_fields}")
    return fields


def _parse_id(digits: bytes) -> int:
    if len(digits) > _ID_DIGITS or int(digits) > _LARGEST_ID:
        raise MalformedLineError(f"id {digits[:24]!r} does not fit int64")
    return int(digits)


def _parse_count(text: bytes) -> int:
    if not text.isdigit() or len(text) > _ID_DIGITS:
        raise MalformedLineError(f"number of features {text[:24]!r} is not a number")
    return int(text)


def _parse_value(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MalformedLineError(f"value {text[:24]!r} is not a finite number")
    return value


def _list_prefixed(source: Path, prefix: str) -> list[Path]:
    if not source.is_dir():
        raise DataError(f"{source}: an Ali-CCP log is a directory with {SKELETON_PREFIX}* and {COMMON_PREFIX}* files")
    found = [path for path in list_log_files(source, suffixes=(".csv",)) if path.name.startswith(prefix)]
    if not found:
        raise DataError(f"{source}: no {prefix}*.csv file in this directory")
    return found


def _list_skeleton_files(source: Path) -> list[Path]:
    return _list_prefixed(source, SKELETON_PREFIX)


def _list_common_files(source: Path) -> list[Path]:
    return _list_prefixed(source, COMMON_PREFIX)


def _make_block_parser(source: Path, malformed: MalformedLines) -> BlockParser:
    common = read_common_features(source, malformed)
    return lambda lines: _parse_skeleton(lines, common)


def _parse_skeleton(lines: list[bytes], common: dict[bytes, Features]) -> ParsedBlock:
    rows: list[LogRow] = []
    reasons: dict[int, str] = {}
    for index, line in enumerate(lines):
        try:
            rows.append(parse_skeleton_line(line, common))
        except MalformedLineError as error:
            reasons[index] = str(error)
    columns = {LABEL: pa.array([row.label for row in rows], pa.int8())}
    for number, name in enumerate(ALI_CCP.dense_names):
        columns[name] = pa.array([row.dense[number] for row in rows], pa.float64())
    for number, name in enumerate(ALI_CCP.sparse_names):
        columns[name] = pa.array([row.sparse[number] for row in rows], pa.int64())
    return ParsedBlock(pa.table(columns), reasons)


ALI_CCP = LogFormat(
    name="ali_ccp",
    dense_names=tuple(f"value_{field}" for field in WEIGHTED_FIELDS),
    sparse_names=tuple(f"field_{field}" for field in FIELDS),
    list_row_files=_list_skeleton_files,
    list_joined_files=_list_common_files,
    make_block_parser=_make_block_parser,
    table_rows=None,
)
