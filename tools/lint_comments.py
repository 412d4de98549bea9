# SPDX-License-Identifier: Apache-2.0
"""Refuses comments and docstrings that begin as a fragment, such as "What peers write into." or "Of a batch.".

A comment is a sentence about the subject of its line, or a noun phrase that names it. One that begins with "What",
"Of", "Whose", "Those" or "Which" is neither: the reader has to guess what it belongs to. "As" and "Where" may begin a
sentence with a main clause behind a comma. A comment over several lines is looked at as a whole, and so is a docstring,
with the descriptions of its parameters.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ALWAYS = re.compile(r"(What|Of|Whose|Those|Which)\b")
_UNLESS_SENTENCE = re.compile(r"(As|Where)\b")
_FIRST_SENTENCE = re.compile(r".*?[.;!?](?=\s|$)|.*", re.DOTALL)
_CPP_COMMENT = re.compile(
    r"""R"(?P<tag>[^()\\ ]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'"""
    r"|(?P<block>/\*.*?\*/)|(?P<line>//[^\n]*)",
    re.DOTALL,
)
_PARAMETER = re.compile(
    r"[@\\](?:param|tparam)(?:\[\w+\])?\s+\S+\s+(?P<text>.*)|[@\\](?:returns?|throws?)\s+(?P<rest>.*)"
)
_GOOGLE_PARAMETER = re.compile(r"\s+[\w*`., ]+:\s+(?P<text>[A-Z].*)")


@dataclass(frozen=True)
class Comment:
    """The text of one comment, without its marks, and the line on which it begins, from 1."""

    line: int
    text: str


def is_fragment(text: str) -> bool:
    """Whether ``text`` begins as a fragment that only its author can complete."""
    text = text.strip()
    if _ALWAYS.match(text):
        return not _is_question(text)
    # A colon ends what may hold the main clause: "As in insertion: claim slots first, ..." is a fragment.
    return bool(_UNLESS_SENTENCE.match(text)) and "," not in _first_sentence(text).split(": ")[0]


def _first_sentence(text: str) -> str:
    found = _FIRST_SENTENCE.match(text)
    assert found is not None, "the pattern matches any text"
    return found.group()


def _is_question(text: str) -> bool:
    return _first_sentence(text).endswith("?")


def cpp_comments(source: str) -> Iterator[Comment]:
    """Comments of C++, CUDA or Promela; lines that follow each other and hold nothing else are one."""
    lines: list[str] = []
    first = last = last_column = 0
    for found in _CPP_COMMENT.finditer(source):
        number = source.count("\n", 0, found.start()) + 1
        if block := found["block"]:
            yield from _cpp_parts(number, re.sub(r"\n\s*\*", "\n", block.strip("/*!< ")))
            continue
        if not (line := found["line"]):
            continue
        column = found.start() - source.rfind("\n", 0, found.start())
        is_trailing = source[found.start() - column + 1 : found.start()].strip() != ""
        if lines and (number != last + 1 or is_trailing or column != last_column):
            yield from _cpp_parts(first, "\n".join(lines))
            lines = []
        if not lines:
            first = number
        lines.append(line.lstrip("/!<").strip())
        last, last_column = number, column
    if lines:
        yield from _cpp_parts(first, "\n".join(lines))


def _cpp_parts(line: int, text: str) -> Iterator[Comment]:
    yield Comment(line, text)
    for offset, each in enumerate(text.splitlines()):
        if found := _PARAMETER.match(each.strip()):
            yield Comment(line + offset, found["text"] or found["rest"] or "")


def python_comments(source: str) -> Iterator[Comment]:
    """Comments and docstrings of Python."""
    lines: list[str] = []
    first = last = last_column = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        number, column = token.start
        is_trailing = token.line[:column].strip() != ""
        if lines and (number != last + 1 or is_trailing or column != last_column):
            yield Comment(first, "\n".join(lines))
            lines = []
        if not lines:
            first = number
        lines.append(token.string.lstrip("#:! "))
        last, last_column = number, column
    if lines:
        yield Comment(first, "\n".join(lines))
    yield from _docstrings(source)


def _docstrings(source: str) -> Iterator[Comment]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        text = ast.get_docstring(node, clean=False)
        if text is None:
            continue
        line = node.body[0].lineno
        yield Comment(line, text)
        for offset, each in enumerate(text.splitlines()):
            if found := _GOOGLE_PARAMETER.match(each):
                yield Comment(line + offset, found["text"])


def comments_of(path: Path) -> Iterator[Comment]:
    source = path.read_text(encoding="utf-8")
    return python_comments(source) if path.suffix in {".py", ".pyi"} else cpp_comments(source)


def main(argv: list[str]) -> int:
    """Prints the fragments of the given files; returns 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="sources of C++, CUDA, Promela or Python")
    files = parser.parse_args(argv).files
    num_bad = 0
    for path in files:
        for comment in comments_of(path):
            if is_fragment(comment.text):
                num_bad += 1
                print(f"{path}:{comment.line}: a fragment: {comment.text.strip().splitlines()[0]}")
    print(f"comments: {len(files)} files, {num_bad} fragments")
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
