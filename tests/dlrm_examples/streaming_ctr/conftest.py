# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one thread, and a log in KuaiRand's format whose clicks depend on the video."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from kuairand_files import DAY_MS, FIRST_MS, LOG_COLUMNS, write_csv, write_features


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs torch on one thread: the tensors are small, and threads would wait for each other on loaded cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def kuairand_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of about 1000 rows each; videos below 10 are clicked three times as often as the others."""
    directory = tmp_path_factory.mktemp("kuairand")
    random = np.random.default_rng(5)
    num_rows, num_users, num_videos = 3000, 60, 20
    times = np.sort(random.choice(3 * DAY_MS, num_rows, replace=False)) + FIRST_MS
    users, videos = random.integers(0, num_users, num_rows), random.integers(0, num_videos, num_rows)
    clicks = random.random(num_rows) < np.where(videos < 10, 0.75, 0.25)
    long_views = clicks & (random.random(num_rows) < 0.7)
    columns = (users, videos, np.zeros_like(users), times, clicks.astype(int), long_views.astype(int), videos * 1000)
    tab = np.ones_like(users)
    write_csv(
        directory / "log_standard_pure.csv", LOG_COLUMNS, zip(*(c.tolist() for c in (*columns, tab)), strict=True)
    )
    write_features(directory, num_users=num_users, num_videos=num_videos)
    return directory
