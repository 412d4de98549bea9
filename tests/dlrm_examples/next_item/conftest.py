# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one thread, and ratings in MovieLens' format in which each film predicts the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

NUM_FILMS = 30


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs torch on one thread: the tensors are small, and threads would wait for each other on loaded cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes 60 users who rate films 100, 110, 120, ... in turn from a random start, with shuffled lines."""
    random = np.random.default_rng(5)
    lines = []
    for user in range(1, 61):
        first, time = int(random.integers(NUM_FILMS)), int(random.integers(10**9))
        for i in range(int(random.integers(5, 13))):
            time += int(random.integers(1, 10**5))
            lines.append(f"{user},{100 + 10 * ((first + i) % NUM_FILMS)},{random.integers(1, 11) / 2},{time}")
    random.shuffle(lines)
    path = tmp_path_factory.mktemp("movielens") / "ratings.csv"
    path.write_text("\r\n".join(["userId,movieId,rating,timestamp", *lines, ""]))
    return path
