# SPDX-License-Identifier: Apache-2.0
"""Selects the reader of a log by its path."""

from __future__ import annotations

from pathlib import Path

from dlrm_examples.streaming_ctr.data.criteo import read_criteo
from dlrm_examples.streaming_ctr.data.movielens import read_movielens
from dlrm_examples.support.data.kuairand import LOG_STEM, read_kuairand
from dlrm_examples.support.data.log import Log


def read_log(path: Path, *, max_history: int) -> Log:
    """Reads a log: KuaiRand if a directory has its log, MovieLens for ``ratings*.csv`` or its directory, else Criteo.

    Args:
        path: file or directory.
        max_history: longest list of recent items.
    Raises:
        DataError: the path does not exist, or its contents do not follow the format.
    """
    if path.is_dir() and any(path.glob(f"{LOG_STEM}*.csv*")):
        return read_kuairand(path, max_history=max_history)
    ratings = sorted(path.glob("ratings*.csv*")) if path.is_dir() else [path]
    if ratings and ratings[0].is_file() and ratings[0].name.startswith("ratings"):
        return read_movielens(ratings[0], max_history=max_history)
    return read_criteo(path)
