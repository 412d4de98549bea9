# SPDX-License-Identifier: Apache-2.0
"""Configuration of the Sphinx site. ``make docs`` builds it into ``out/docs/html``.

The pages are Markdown that also reads well on a code host. ``tools/build_docs.py`` runs Doxygen first; Breathe reads
its result. Autodoc imports the compiled package and needs no GPU.

Two things happen to a page before it is parsed:

* A line ``[headers]: # (FOLDER)`` in a page of the C++ API stands for all public headers of that folder.
* Links to Markdown files outside ``docs/``, such as the README of a part, become downloads.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
XML = ROOT / "out/docs/doxygen/xml"
sys.path[:0] = [str(ROOT / "python"), str(DOCS)]

from doxygen_sections import sections  # noqa: E402 - Sphinx does not put this folder on the path

logging.disable(logging.WARNING)  # FBGEMM logs a warning for each of its libraries.
importlib.import_module("headway.torchrec")
logging.disable(logging.NOTSET)

project = "Headway"
author = "The Headway authors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "breathe"]
exclude_patterns = ["requirements.txt"]
html_theme = "furo"
html_title = f"Headway {release}"

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True

breathe_projects = {"headway": str(XML)}
breathe_default_project = "headway"
breathe_default_members = ("members",)

_LINK = re.compile(r"\]\((?P<path>\.\./[^)#\s]+\.md)(#[^)]*)?\)")
_HEADERS = re.compile(r"^\[headers\]: # \((?P<folder>[^)]+)\)$", re.MULTILINE)


def _with_downloads(page: str, text: str) -> str:
    """Makes links to Markdown files outside ``docs/`` downloads, since these are no pages of the site."""

    def link(found: re.Match[str]) -> str:
        target = (DOCS / page).parent / found["path"]
        return found[0] if target.resolve().is_relative_to(DOCS) else f"](path:{found['path']})"

    return _LINK.sub(link, text)


def _read_page(app: Sphinx, page: str, source: list[str]) -> None:
    text = _HEADERS.sub(lambda found: sections(XML, found["folder"]), source[0])
    source[0] = _with_downloads(page, text)


def setup(app: Sphinx) -> None:
    """Lets Sphinx, which calls this function, pass each page through ``_read_page()`` before it is parsed."""
    app.connect("source-read", _read_page)
