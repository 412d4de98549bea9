# SPDX-License-Identifier: Apache-2.0
"""Criteo's format: all fields, missing fields, and a reason for each malformed line."""

from __future__ import annotations

import pytest

from dlrm_examples.support.data.criteo import (
    CATEGORY_NAMES,
    INTEGER_NAMES,
    NUM_CATEGORIES,
    NUM_INTEGERS,
    parse_lines,
)
from dlrm_examples.support.data.log_format import LABEL


def line(
    label: str = "1",
    integers: list[str] | None = None,
    categories: list[str] | None = None,
    end: str = "\n",
) -> bytes:
    integers = integers if integers is not None else [str(i) for i in range(NUM_INTEGERS)]
    categories = categories if categories is not None else [f"{i:08x}" for i in range(NUM_CATEGORIES)]
    return ("\t".join([label, *integers, *categories]) + end).encode()


def parse(text: bytes, **options: int) -> tuple[int, list[float | None], list[int | None]]:
    """Label, integers and categories of a line that is not malformed."""
    rows, malformed = parse_lines([text], **options)
    assert not malformed
    (row,) = rows.to_pylist()
    return row[LABEL], [row[name] for name in INTEGER_NAMES], [row[name] for name in CATEGORY_NAMES]


def test_all_fields_of_a_full_line_are_read() -> None:
    label, integers, categories = parse(line(categories=["ffffffff", "68FD1E64"] + ["0"] * 24))
    assert label == 1
    assert integers == list(range(NUM_INTEGERS))
    assert categories == [0xFFFFFFFF, 0x68FD1E64, *[0] * 24]


def test_negative_integers_are_kept() -> None:
    assert parse(line(integers=["-1", "-3"] + ["7"] * 11))[1][:3] == [-1, -3, 7]


def test_missing_fields_are_missing_also_at_the_end_of_the_line() -> None:
    _, integers, categories = parse(line(integers=[""] * 12 + ["5"], categories=["a"] + [""] * 25))
    assert integers == [*[None] * 12, 5]
    assert categories == [10, *[None] * 25]


@pytest.mark.parametrize(
    ("text", "value"),
    [("123456789", 0x123456789), ("7" + "f" * 15, 2**63 - 1), ("8" + "0" * 15, -(2**63)), ("F" * 15 + "e", -2)],
)
def test_categories_may_have_16_digits_where_the_caller_wants_them(text: str, value: int) -> None:
    assert parse(line(categories=[text] + ["0"] * 25), category_digits=16)[2][0] == value


def test_a_category_of_more_digits_than_wanted_is_malformed() -> None:
    _, malformed = parse_lines([line(categories=["1" * 17] + ["0"] * 25)], category_digits=16)
    assert "hexadecimal number of up to 16 digits" in malformed[0]


def test_usable_rows_keep_their_order_among_malformed_lines() -> None:
    lines = [line(integers=[str(number)] + ["0"] * 12) for number in range(5)]
    lines[1], lines[3] = b"broken\n", line(label="7")
    rows, malformed = parse_lines(lines)
    assert rows[INTEGER_NAMES[0]].to_pylist() == [0, 2, 4]
    assert sorted(malformed) == [1, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_any_line_end_is_read(end: str) -> None:
    assert parse(line(end=end)) == parse(line())


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"\n", "1 tab-separated fields, expected 40"),
        (line()[2:], "39 tab-separated fields, expected 40"),
        (line(end="\t\n"), "41 tab-separated fields, expected 40"),
        (line(label="2"), "label '2' is neither 0 nor 1"),
        (line(label=""), "label '' is neither 0 nor 1"),
        (line(integers=["1.5"] + ["0"] * 12), "integer 1 is '1.5'"),
        (line(integers=["0"] * 12 + ["1_0"]), "integer 13 is '1_0'"),
        (line(integers=["-"] + ["0"] * 12), "integer 1 is '-'"),
        (line(categories=["xyz"] + ["0"] * 25), "category 1 is 'xyz'"),
        (line(categories=["0"] * 25 + ["123456789"]), "category 26 is '123456789'"),
        (line(categories=["0x1f"] + ["0"] * 25), "category 1 is '0x1f'"),
        (line().replace(b"\t", b","), "1 tab-separated fields, expected 40"),
        (line().replace(b"\t1\t", b"\t1\r\t"), "integer 2 is '1\\r'"),
        (line(categories=["\xff"] + ["0"] * 25), "category 1 is"),
        (line(categories=["0"] * 24 + ["\r", ""]), "category 25 is '\\r'"),
        (line(categories=['"'] + ["0"] * 25), "category 1 is"),
    ],
)
def test_a_malformed_line_says_what_is_wrong(broken: bytes, reason: str) -> None:
    rows, malformed = parse_lines([broken])
    assert len(rows) == 0
    assert malformed[0].startswith(reason)
