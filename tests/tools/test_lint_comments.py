# SPDX-License-Identifier: Apache-2.0
"""The lint refuses comments that only their author can complete, and nothing else."""

from __future__ import annotations

import lint_comments as lint
import pytest


@pytest.mark.parametrize(
    ("text", "is_fragment"),
    [
        ("What peers write into.", True),
        ("Of a batch without duplicates.", True),
        ("Whose value is a number.", True),
        ("Those of the last step.", True),
        ("Which slot is next.", True),
        ("Where peers write.", True),
        ("As the ring does.", True),
        ("As in insertion: claim slots first, then write.", True),
        ("Where a rank lags, its peers wait.", False),
        ("As the ring is full, the sender waits.", False),
        ("What does an exchange cost?", False),
        ("Maps a QP number to (peer, rail).", False),
        ("Keys per tile.", False),
        ("Whatever comes first.", False),
    ],
)
def test_fragments_are_told_from_sentences(text: str, is_fragment: bool) -> None:
    assert lint.is_fragment(text) == is_fragment


def test_comments_of_cpp_are_found_where_they_are() -> None:
    source = (
        'auto text = "// Of no comment";\n'
        "int a;  ///< Of a slot.\n"
        "// A sentence that goes on\n"
        "// where this line begins.\n"
        "/** Whose block. */\n"
        "/// @param size Of the block.\n"
        'auto raw = R"(// What is no comment)"; char c = \'"\';\n'
        "int million = 1'000'000;  // Which is a number.\n"
    )
    found = [(each.line, each.text.strip()) for each in lint.cpp_comments(source) if lint.is_fragment(each.text)]
    assert found == [(2, "Of a slot."), (5, "Whose block."), (6, "Of the block."), (8, "Which is a number.")]


def test_comments_of_python_are_found_where_they_are() -> None:
    source = (
        '"""Of a module."""\n'
        "x = 1  # Those of a line.\n"
        "# A sentence that goes on\n"
        "# Where this line begins.\n"
        "def f(size: int) -> str:\n"
        '    """Makes a text.\n'
        "\n"
        "    Args:\n"
        "        size: Of the text.\n"
        '    """\n'
        '    return "# What is no comment"\n'
    )
    found = [(each.line, each.text.splitlines()[0].strip()) for each in lint.python_comments(source)
             if lint.is_fragment(each.text)]  # fmt: skip
    assert sorted(found) == [(1, "Of a module."), (2, "Those of a line."), (9, "Of the text.")]
