# SPDX-License-Identifier: Apache-2.0
"""Criteo's click logs: a label, 13 integers and 26 hexadecimal categories, separated by tabs. A field may be empty."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from dlrm_examples.support.data.log_files import list_log_files
from dlrm_examples.support.data.log_format import LABEL, BlockParser, LogFormat, MalformedLines, ParsedBlock

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
NUM_FIELDS = 1 + NUM_INTEGERS + NUM_CATEGORIES

# Number of distinct values per category in the Kaggle log (Display Advertising Challenge) and in the Terabyte log.
# fmt: off
KAGGLE_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
TERABYTE_CARDINALITIES = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267, 128, 4, 974,
    14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)
# fmt: on

INTEGER_NAMES = tuple(f"integer_{i}" for i in range(1, NUM_INTEGERS + 1))
CATEGORY_NAMES = tuple(f"category_{i}" for i in range(1, NUM_CATEGORIES + 1))
CATEGORY_DIGITS = 8
"""Hexadecimal digits of a published category."""

_INTEGER = "-?[0-9]{1,18}|"


def parse_lines(lines: list[bytes], *, category_digits: int = CATEGORY_DIGITS) -> ParsedBlock:
    """Parses lines. Integers may be negative; any of the last 39 fields may be empty.

    Args:
        lines: with their line ends.
        category_digits: maximum number of hexadecimal digits of a category, up to 16. A category of 16 digits is an
            unsigned 64-bit number; it becomes the int64 with the same bits.
    """
    texts = [line.rstrip(b"\r\n") for line in lines]
    whole = [i for i, text in enumerate(texts) if text.count(b"\t") == NUM_FIELDS - 1 and b"\r" not in text]
    patterns = {LABEL: "[01]", **dict.fromkeys(INTEGER_NAMES, _INTEGER)}
    patterns |= dict.fromkeys(CATEGORY_NAMES, f"[0-9a-fA-F]{{0,{category_digits}}}")
    fields = pa.table({name: pa.array([], pa.binary()) for name in patterns})
    if whole:
        fields = pa_csv.read_csv(
            pa.BufferReader(b"\n".join(texts[i] for i in whole)),
            read_options=pa_csv.ReadOptions(column_names=list(patterns), use_threads=False),
            parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(patterns, pa.binary())),
        )
    matches = (pc.match_substring_regex(fields[name], f"^({pattern})$") for name, pattern in patterns.items())
    is_good = reduce(pc.and_, matches)
    good = fields.filter(is_good)
    columns = {LABEL: pc.cast(pc.cast(good[LABEL], pa.string()), pa.int8())}
    for name in INTEGER_NAMES:
        columns[name] = pc.cast(_without_empty(good[name]), pa.float64())
    for name in CATEGORY_NAMES:
        columns[name] = _from_hexadecimal(_without_empty(good[name]))
    kept = {whole[i] for i in np.flatnonzero(is_good)}
    return ParsedBlock(
        pa.table(columns), {i: _reason(line, category_digits) for i, line in enumerate(lines) if i not in kept}
    )


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = pc.cast(column, pa.string())
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _from_hexadecimal(column: pa.ChunkedArray) -> pa.Array:
    digits = "".join(pc.utf8_lpad(pc.fill_null(column, "0"), 16, "0").to_pylist())
    values = np.frombuffer(bytes.fromhex(digits), dtype=">u8").astype(np.int64)
    return pa.array(values, mask=column.is_null().to_numpy())


def _reason(line: bytes, category_digits: int) -> str:
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != NUM_FIELDS:
        return f"{len(fields)} tab-separated fields, expected {NUM_FIELDS}"
    if fields[0] not in (b"0", b"1"):
        return f"label {_shown(fields[0])} is neither 0 nor 1"
    for number, text in enumerate(fields[1 : 1 + NUM_INTEGERS], start=1):
        if not re.fullmatch(_INTEGER.encode(), text):
            return f"integer {number} is {_shown(text)}"
    for number, text in enumerate(fields[1 + NUM_INTEGERS :], start=1):
        if not re.fullmatch(rb"[0-9a-fA-F]*", text) or len(text) > category_digits:
            return f"category {number} is {_shown(text)}, not a hexadecimal number of up to {category_digits} digits"
    return "stray line end inside the line"


def _shown(text: bytes) -> str:
    return repr(text[:24].decode("ascii", errors="backslashreplace"))


def _list_row_files(source: Path) -> list[Path]:
    return list_log_files(source, suffixes=(".tsv", ".txt"))


def _list_joined_files(source: Path) -> list[Path]:
    return []


def _make_block_parser(source: Path, malformed: MalformedLines) -> BlockParser:
    return parse_lines


CRITEO = LogFormat(
    name="criteo",
    dense_names=INTEGER_NAMES,
    sparse_names=CATEGORY_NAMES,
    list_row_files=_list_row_files,
    list_joined_files=_list_joined_files,
    make_block_parser=_make_block_parser,
    table_rows=KAGGLE_CARDINALITIES,
)
