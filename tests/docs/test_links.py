# SPDX-License-Identifier: Apache-2.0
"""Links between the documents lead somewhere, on a code host too, and so do paths of documents in the sources."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)
_DOCUMENT = re.compile(r"\bdocs/[\w/]+\.md\b")


def sources(*patterns: str) -> list[Path]:
    """Lists the files that git tracks or does not ignore and that match one of ``patterns``."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return sorted(path for name in listing.stdout.split("\0") if (path := ROOT / name).is_file())


def text_of(path: Path) -> str:
    """The text of a document, without code blocks."""
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors_of(text: str) -> set[str]:
    """The anchors that a code host gives to the headings of a document."""
    headings = (found["text"].strip().lower() for found in _HEADING.finditer(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> Iterator[str]:
    """Yields the relative links of a document that lead nowhere."""
    for link in _LINK.finditer(text_of(path)):
        if ":" in link["path"]:  # http: and mailto:
            continue
        target = (path.parent / link["path"]) if link["path"] else path
        if not (target.exists() and has_anchor(target, link["anchor"])):
            yield link[0]


def has_anchor(target: Path, anchor: str | None) -> bool:
    """Whether ``target`` has a heading with this anchor; only documents are looked at."""
    return anchor is None or target.suffix != ".md" or anchor in anchors_of(text_of(target))


def test_links_between_documents_lead_somewhere() -> None:
    broken = {str(path.relative_to(ROOT)): list(broken_links(path)) for path in sources("*.md")}
    assert {path: links for path, links in broken.items() if links} == {}


def test_documents_that_sources_name_exist() -> None:
    patterns = ("*.py", "*.pyi", "*.hpp", "*.cpp", "*.cu", "*.cuh", "*.inl", "*.sh", "*.toml", "*.pml", "Makefile")
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in sources(*patterns)
        for name in _DOCUMENT.findall(path.read_text(encoding="utf-8"))
    }
    assert named, "the pattern finds nothing"
    assert {(path, name) for path, name in named if not (ROOT / name).exists()} == set()


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Who may read a rank's memory?\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md#who-may-read-a-ranks-memory) [b](gone.md) [c](there.md#gone)\n```\n[d](gone.md)\n```\n"
    )
    assert list(broken_links(page)) == ["](gone.md)", "](there.md#gone)"]
