# SPDX-License-Identifier: Apache-2.0
"""PyTorch's distributed tests on one backend: ``[BACKEND=gloo] pytest tests/c10d_backend/torch_suite/run_suite.py``.

Each test runs in freshly forked ranks, so that torch is imported once. A test that the suite skips with 4 ranks because
they are too few runs again with 8. ``conftest.py`` judges the outcomes against those of Gloo.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest
from collections.abc import Callable

#: Reason with which the suite skips a test that needs LARGE_WORLD ranks.
SMALL_WORLD, LARGE_WORLD = "small world size", "8"

sys.path.insert(0, str(pathlib.Path(__file__).parent))
backend = os.environ.setdefault("BACKEND", "headway")
os.environ.setdefault("WORLD_SIZE", "4")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "120")
# The suite's timeout tests need a rendezvous that can be repeated. With this file they run as upstream.
store_folder = tempfile.TemporaryDirectory()
os.environ["INIT_METHOD"] = f"file://{store_folder.name}/store"

import headway  # noqa: E402, F401 - registers the backend
import torch  # noqa: E402
from suite_source import load_suite  # noqa: E402

suite = load_suite(backend)


class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
    """Every test of the suite, on forked ranks."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def _callTestMethod(self, method: Callable[[], None]) -> None:
        try:
            super()._callTestMethod(method)
        except unittest.SkipTest as reason:
            if SMALL_WORLD not in str(reason):
                raise
            self.tearDown()
            few, os.environ["WORLD_SIZE"] = os.environ["WORLD_SIZE"], LARGE_WORLD
            try:
                self.setUp()
                super()._callTestMethod(method)
            finally:
                os.environ["WORLD_SIZE"] = few
