# SPDX-License-Identifier: Apache-2.0
"""Skips the collection of these tests if TorchRec is not installed."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("fbgemm_gpu") is None or importlib.util.find_spec("torchrec") is None:
    collect_ignore_glob = ["test_*.py"]
