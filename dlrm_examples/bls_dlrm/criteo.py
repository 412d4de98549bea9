"""Criteo's click logs: a label, 13 integers and 26 hexadecimal categories, separated by tabs. A field may be empty."""

from __future__ import annotations

import re
from pathlib import Path

from dlrm_examples.bls_dlrm.log_files import list_log_files
from dlrm_examples.bls_dlrm.log_format import LineParser, LogFormat, LogRow, MalformedLineError, MalformedLines

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

_INTEGER = rb"-?[0-9]{1,18}|"
CATEGORY_DIGITS = 8
"""Hexadecimal digits of a published category."""


def line_parser(*, category_digits: int) -> LineParser:
    """Creates a parser of one line. Integers may be negative; any of the last 39 fields may be empty.

    Args:
        category_digits: maximum number of hexadecimal digits of a category, up to 16. A category of 16 digits is an
            unsigned 64-bit number; it becomes the int64 with the same bits.
    Raises:
        MalformedLineError: raised by the returned parser, if a line does not have 40 fields of the right kind.
    """
    category = rb"[0-9a-fA-F]{0,%d}" % category_digits
    whole_line = re.compile(
        rb"([01])"
        + (rb"\t(" + _INTEGER + rb")") * NUM_INTEGERS
        + (rb"\t(" + category + rb")") * NUM_CATEGORIES
        + rb"\r?\n?"
    )

    def parse(line: bytes) -> LogRow:
        match = whole_line.fullmatch(line)
        if match is None:
            raise MalformedLineError(_reason(line, category_digits))
        fields = match.groups()
        return LogRow(
            label=int(fields[0]),
            dense=tuple([int(text) if text else None for text in fields[1 : 1 + NUM_INTEGERS]]),
            sparse=tuple([_category(text) if text else None for text in fields[1 + NUM_INTEGERS :]]),
        )

    return parse


def _category(text: bytes) -> int:
    value = int(text, 16)
    return value - (1 << 64) if value >= 1 << 63 else value


def _reason(line: bytes, category_digits: int) -> str:
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != NUM_FIELDS:
        return f"{len(fields)} tab-separated fields, expected {NUM_FIELDS}"
    if fields[0] not in (b"0", b"1"):
        return f"label {_shown(fields[0])} is neither 0 nor 1"
    for number, text in enumerate(fields[1 : 1 + NUM_INTEGERS], start=1):
        if not re.fullmatch(_INTEGER, text):
            return f"integer {number} is {_shown(text)}"
    for number, text in enumerate(fields[1 + NUM_INTEGERS :], start=1):
        if not re.fullmatch(rb"[0-9a-fA-F]*", text) or len(text) > category_digits:
            return f"category {number} is {_shown(text)}, not a hexadecimal number of up to {category_digits} digits"
    return "stray line end inside the line"


def _shown(text: bytes) -> str:
    return repr(text[:24].decode("ascii", errors="backslashreplace"))


parse_line = line_parser(category_digits=CATEGORY_DIGITS)
"""Reads one line of a published log."""


def _list_row_files(source: Path) -> list[Path]:
    return list_log_files(source, suffixes=(".tsv", ".txt"))


def _list_joined_files(source: Path) -> list[Path]:
    return []


def _make_line_parser(source: Path, malformed: MalformedLines) -> LineParser:
    return parse_line


CRITEO = LogFormat(
    name="criteo",
    dense_names=tuple(f"integer_{i}" for i in range(1, NUM_INTEGERS + 1)),
    sparse_names=tuple(f"category_{i}" for i in range(1, NUM_CATEGORIES + 1)),
    list_row_files=_list_row_files,
    list_joined_files=_list_joined_files,
    make_line_parser=_make_line_parser,
    table_rows=KAGGLE_CARDINALITIES,
)
