# SPDX-License-Identifier: Apache-2.0
"""tools/lint_sentences.py: the count of long sentences (more than 25 words) in documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_sentences import main, sentences_of, words_of

LONG = " ".join(["word"] * 26) + ".\n"


def test_code_tables_and_headings_are_no_sentences() -> None:
    text = (
        "# A title\n\nA rank `waits`. It [spins](a.md) first.\n\n```\ncode. More\n```\n\n| a | b |\n\n- An item\n- Two"
    )
    assert list(sentences_of(text)) == ["A rank `x`.", "It spins first.", "An item", "Two"]


def test_words_are_counted_with_their_marks() -> None:
    assert words_of("At k = 2, `x` takes 1.5 us (64 KiB).") == 9


@pytest.mark.parametrize(("num_short", "num_long", "status"), [(20, 2, 0), (20, 3, 1), (1, 1, 0), (0, 2, 1)])
def test_a_tenth_of_the_sentences_may_be_long(tmp_path: Path, num_short: int, num_long: int, status: int) -> None:
    path = tmp_path / "page.md"
    path.write_text("A short one.\n" * num_short + LONG.capitalize() * num_long)
    assert main([str(path)]) == status
