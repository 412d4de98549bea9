# SPDX-License-Identifier: Apache-2.0
"""Rating histories of users, in time order.

Shapes: T ratings of all users, U users.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dlrm_examples.support.data.csv_files import find_csv_files, integer_column, read_csv
from dlrm_examples.support.data.log_format import DataError

MIN_RATINGS = 3
"""Fewest ratings of a user who takes part: one for the validation, one for the test, and one before these."""


@dataclass(frozen=True, kw_only=True)
class Histories:
    """Ratings of all users, concatenated user by user.

    Attributes:
        items: (T,) int64, indices of films from 0.
        times: (T,) int64, in seconds, ascending for each user.
        offsets: (U + 1,) int64: user u has ratings ``offsets[u]`` to ``offsets[u + 1]``.
        num_items: number of films.
    """

    items: Tensor
    times: Tensor
    offsets: Tensor
    num_items: int

    @property
    def num_users(self) -> int:
        """U, the number of users."""
        return self.offsets.shape[0] - 1

    def train_counts(self) -> Tensor:
        """(num_items,) int64: number of ratings of each film, without the last two ratings of each user."""
        is_train = torch.ones(self.items.shape[0], dtype=torch.bool)
        is_train[self.offsets[1:] - 1] = False
        is_train[self.offsets[1:] - 2] = False
        return torch.bincount(self.items[is_train], minlength=self.num_items)


def read_histories(path: Path, *, min_count: int = 1) -> Histories:
    """Reads MovieLens' ``ratings*.csv``, also ``.gz``. The values of the ratings are not used.

    Ratings of a user with equal time stamps (one in six of ml-latest-small) get a random order with a fixed seed. The
    file sorts them by film, which would leak the next item. Users with fewer than ``MIN_RATINGS`` are left out.

    Args:
        path: the file or its directory.
        min_count: films with fewer ratings are left out, before users are counted.
    Raises:
        DataError: the file does not follow the format, or no user has enough ratings.
    """
    file = find_csv_files(path, "ratings")[0] if path.is_dir() else path
    rows = read_csv([file], integers=["userId", "movieId", "timestamp"])
    users, films, times = (integer_column(rows, name) for name in ("userId", "movieId", "timestamp"))
    _, film, film_counts = np.unique(films, return_inverse=True, return_counts=True)
    is_common = film_counts[film] >= min_count
    users, films, times = users[is_common], films[is_common], times[is_common]
    _, users, counts = np.unique(users, return_inverse=True, return_counts=True)
    drawn = np.random.default_rng(0).permutation(len(users))
    order = np.lexsort((drawn, times, users))
    order = order[counts[users[order]] >= MIN_RATINGS]
    if not len(order):
        raise DataError(f"{file}: no user has {MIN_RATINGS} ratings or more")
    kept, items = np.unique(films[order], return_inverse=True)
    return Histories(
        items=torch.from_numpy(items.astype(np.int64)),
        times=torch.from_numpy(times[order]),
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(counts[counts >= MIN_RATINGS])])),
        num_items=len(kept),
    )
