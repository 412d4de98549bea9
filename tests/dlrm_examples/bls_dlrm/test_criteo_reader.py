"""Criteo's format: all fields, missing fields, and a reason for each malformed line."""

from __future__ import annotations

import pytest

from dlrm_examples.bls_dlrm.criteo import NUM_CATEGORIES, NUM_INTEGERS, line_parser, parse_line
from dlrm_examples.bls_dlrm.log_format import MalformedLineError


def line(
    label: str = "1",
    integers: list[str] | None = None,
    categories: list[str] | None = None,
    end: str = "\n",
) -> bytes:
    integers = integers if integers is not None else [str(i) for i in range(NUM_INTEGERS)]
    categories = categories if categories is not None else [f"{i:08x}" for i in range(NUM_CATEGORIES)]
    return ("\t".join([label, *integers, *categories]) + end).encode()


def test_all_fields_of_a_full_line_are_read() -> None:
    row = parse_line(line(categories=["ffffffff", "68FD1E64"] + ["0"] * 24))

    assert row.label == 1
    assert row.dense == tuple(range(NUM_INTEGERS))
    assert row.sparse == (0xFFFFFFFF, 0x68FD1E64, *[0] * 24)


def test_negative_integers_are_kept() -> None:
    assert parse_line(line(integers=["-1", "-3"] + ["7"] * 11)).dense[:3] == (-1, -3, 7)


def test_missing_fields_are_missing_also_at_the_end_of_the_line() -> None:
    row = parse_line(line(integers=[""] * 12 + ["5"], categories=["a"] + [""] * 25))

    assert row.dense == (*[None] * 12, 5)
    assert row.sparse == (10, *[None] * 25)


@pytest.mark.parametrize(
    ("text", "value"),
    [("123456789", 0x123456789), ("7" + "f" * 15, 2**63 - 1), ("8" + "0" * 15, -(2**63)), ("F" * 15 + "e", -2)],
)
def test_categories_may_have_16_digits_where_the_caller_wants_them(text: str, value: int) -> None:
    assert line_parser(category_digits=16)(line(categories=[text] + ["0"] * 25)).sparse[0] == value


def test_a_category_of_more_digits_than_wanted_is_malformed() -> None:
    with pytest.raises(MalformedLineError, match="hexadecimal number of up to 16 digits"):
        line_parser(category_digits=16)(line(categories=["1" * 17] + ["0"] * 25))


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_any_line_end_is_read(end: str) -> None:
    assert parse_line(line(end=end)) == parse_line(line())


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
    ],
)
def test_a_malformed_line_says_what_is_wrong(broken: bytes, reason: str) -> None:
    with pytest.raises(MalformedLineError) as raised:
        parse_line(broken)
    assert str(raised.value).startswith(reason)
