# SPDX-License-Identifier: Apache-2.0
"""Reader of MovieLens ratings: ``userId,movieId,rating,timestamp`` (seconds), in any order. Label: rating >= 4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dlrm_examples.support.data.columns import Events, recent_items, single
from dlrm_examples.support.data.csv_files import integer_column, read_csv
from dlrm_examples.support.data.log import Feature, Log
from dlrm_examples.support.data.log_format import DataError

FEATURES = (
    Feature(name="user_id", table="user"),
    Feature(name="movie_id", table="movie"),
    Feature(name="recent_movies", table="movie", pooling="mean"),
)
TRAIN_SHARE = 0.8
_LIKED = 4.0


def read_movielens(path: Path, *, max_history: int) -> Log:
    """Reads a file of ratings. The last fifth in time is for evaluation.

    Args:
        path: the file, plain or ``.gz``.
        max_history: longest list of movies that a user rated before.
    Raises:
        DataError: the file does not follow the format.
    """
    rows = read_csv([path], integers=["userId", "movieId", "timestamp"], texts=["rating"])
    rows = rows.take(np.argsort(integer_column(rows, "timestamp"), kind="stable"))
    user_ids, movie_ids, time_s = (integer_column(rows, name) for name in ("userId", "movieId", "timestamp"))
    try:
        ratings = rows.column("rating").to_numpy().astype(np.float32)
    except ValueError as error:
        raise DataError(f"{path}: column 'rating': {error}") from error
    if not np.isfinite(ratings).all():
        raise DataError(f"{path}: column 'rating': {ratings[~np.isfinite(ratings)][0]} is not a finite number")
    rated = Events(user_ids, time_s, movie_ids)
    return Log(
        features=FEATURES,
        columns={
            "user_id": single(user_ids),
            "movie_id": single(movie_ids),
            "recent_movies": recent_items(rated, max_items=max_history, num_asked=len(rows)),
        },
        label_names=("liked",),
        labels=torch.from_numpy((ratings >= _LIKED).astype(np.float32))[:, None],
        user_ids=torch.tensor(user_ids),
        rate_features=("user_id", "movie_id"),
        num_train=int(TRAIN_SHARE * len(rows)),
    )
