# SPDX-License-Identifier: Apache-2.0
"""Counts long sentences in the documents: 90% of each document's sentences must have at most 25 words.

Code blocks, tables and headings are not counted. A link counts as its text, code in backquotes as one word. A document
with fewer than ten sentences may have one long one. Prints each document that has too many, with its longest sentences;
the exit status is then 1.

Example: "A rank waits. It spins first." has two sentences of three words.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_WORDS = 25
SHARE_OF_LONG = 0.1  #: Largest share of sentences with more than MOST_WORDS words.
_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="documents")
    paths = parser.parse_args(argv).paths
    failed = [line for path in paths if (line := _complaint(path))]
    print(*failed, sep="\n")
    print(f"{len(failed)} of {len(paths)} documents have too many sentences of more than {MOST_WORDS} words")
    return 1 if failed else 0


def _complaint(path: Path) -> str | None:
    """Returns what is wrong with a document; None if nothing is."""
    sentences = list(sentences_of(path.read_text(encoding="utf-8")))
    long = sorted((words_of(each), each) for each in sentences if words_of(each) > MOST_WORDS)
    if len(long) <= max(1, SHARE_OF_LONG * len(sentences)):
        return None
    examples = "".join(f"\n  {count} words: {text[:100]} ..." for count, text in reversed(long[-3:]))
    return f"{path}: {len(long)} of {len(sentences)} sentences are long{examples}"


def sentences_of(document: str) -> Iterator[str]:
    """Yields the sentences of a Markdown document outside code, tables and headings."""
    document = re.sub(r"^(```|~~~).*?^\1", "", document, flags=re.DOTALL | re.MULTILINE)
    for paragraph in _paragraphs(document):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        text = re.sub(r"`[^`]*`", "`x`", text)
        yield from (each for each in _END.split(text) if re.search(r"\w", each))


def _paragraphs(document: str) -> Iterator[str]:
    lines: list[str] = []
    for line in [*document.splitlines(), ""]:
        is_item, is_text = bool(_ITEM.match(line)), bool(line.strip()) and not line.lstrip().startswith(("#", "|", "<"))
        if (is_item or not is_text) and lines:
            yield " ".join(lines)
            lines = []
        if is_text:
            lines.append(_ITEM.sub("", line).strip())


def words_of(sentence: str) -> int:
    """Counts the words of a sentence."""
    return len(re.findall(r"[\w`'.,/=+%-]*\w[\w`'.,/=+%-]*", sentence))


if __name__ == "__main__":
    sys.exit(main())
