# SPDX-License-Identifier: Apache-2.0
"""tools/count_comments.py: the count of comment lines, and of lines with a comment behind code.

``Counts`` has all lines, comment lines, and lines with a comment behind code, in this order.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from count_comments import Counts, count, is_product, main


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("// Idea.\nint i;\n", Counts(2, 1, 0)),
        ("// SPDX-License-Identifier: Apache-2.0\n\nint i;\n", Counts(3, 0, 0)),
        ("/* A block\n   of three\n   lines. */\nint i;\n", Counts(4, 3, 0)),
        ("/* one line */\nint i;\n", Counts(2, 1, 0)),
        ("int i;  ///< Rows.\n", Counts(1, 0, 1)),
        ('auto url = "http://host";\n', Counts(1, 0, 0)),
        ('auto quoted = "\\"//\\"";  // Comment.\n', Counts(1, 0, 1)),
        ("", Counts(0, 0, 0)),
    ],
)
def test_lines_are_counted_by_kind(text: str, expected: Counts) -> None:
    assert count(text) == expected


def test_share_of_nothing_is_zero() -> None:
    assert Counts().share == 0.0
    assert (Counts(3, 1, 0) + Counts(1, 0, 1)).share == 25.0


@pytest.mark.parametrize(
    ("path", "expected"),
    [("kernels/src/a.cpp", True), ("tests/kernels/a.cpp", False), ("examples/cpp/tests/a.cpp", False)],
)
def test_tests_and_benchmarks_are_no_product(path: str, expected: bool) -> None:
    assert is_product(Path(path)) is expected


def test_a_share_below_the_limit_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels/include"]) == 0
    assert main(["kernels/include", "--at-least", "99"]) == 1
    assert "at least 99%" in capsys.readouterr().out
