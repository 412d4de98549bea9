# SPDX-License-Identifier: Apache-2.0
"""Judges the outcomes of PyTorch's tests against those of Gloo.

A test that passes under Gloo (``gloo_passes.txt``) must pass, too: if it is skipped, it fails. The tests that
``exceptions.txt`` names must not pass; otherwise the list is stale. A reason may begin with the versions of torch
that it is about: ``torch<2.15``.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Generator

import pytest
import torch

HERE = pathlib.Path(__file__).resolve().parent


def read_names(name: str) -> dict[str, str]:
    """Reads a list file: test names with the rest of their line. ``#`` starts a comment."""
    lines = (line.split("#")[0].strip() for line in (HERE / name).read_text().splitlines())
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines if line}


def read_exceptions() -> dict[str, str]:
    """Names and reasons of the exceptions for the present torch."""
    present = tuple(int(part) for part in torch.__version__.split(".")[:2])
    names = {}
    for name, reason in read_names("exceptions.txt").items():
        limit = re.match(r"torch<(\d+)\.(\d+) ", reason)
        if limit is None or present < (int(limit[1]), int(limit[2])):
            names[name] = reason
    return names


EXCEPTIONS = {} if os.environ.get("BACKEND") == "gloo" else read_exceptions()
GLOO_PASSES = read_names("gloo_passes.txt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in EXCEPTIONS:
            item.add_marker(pytest.mark.xfail(reason=EXCEPTIONS[item.name], strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.name in GLOO_PASSES and item.name not in EXCEPTIONS:
        report.outcome = "failed"
        report.longrepr = f"Gloo passes this test, and here it was skipped: {report.longrepr}"
    return report
