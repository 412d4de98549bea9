# SPDX-License-Identifier: Apache-2.0
"""Reader of KuaiRand's standard log with features of users and videos, as published or as a subset.

A directory holds ``log_standard*.csv``, ``user_features*.csv`` and ``video_features_basic*.csv``, also as ``.gz``. It
may hold ``histories*.parquet``: per user a list ``watch_seq`` of videos shown before the log, oldest first; the last
one was shown at ``last_time_ms``. The labels are the click and the long view. Day and hour come from ``time_ms`` in
Beijing time, because ``hourmin`` disagrees with it in every sixth row. Rows with equal user, video and time are one
event; all but the first are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from dlrm_examples.support.data.columns import (
    Events,
    Ids,
    first_of_each,
    hashed,
    joined,
    lists,
    log_bucket,
    recent_items,
    side_by_side,
    single,
)
from dlrm_examples.support.data.csv_files import find_csv_files, integer_column, read_csv
from dlrm_examples.support.data.id_columns import id_lists, id_values
from dlrm_examples.support.data.log import Feature, Jagged, Log
from dlrm_examples.support.data.log_format import DataError

LOG_STEM = "log_standard"
LABELS = ("is_click", "long_view")
FEATURES = (
    Feature(name="user_id", table="user"),
    Feature(name="user_profile", table="category", pooling="mean"),
    Feature(name="video_id", table="video"),
    Feature(name="author_id", table="author"),
    Feature(name="music_id", table="music"),
    Feature(name="tags", table="tag", pooling="mean"),
    Feature(name="video_profile", table="category", pooling="mean"),
    Feature(name="duration", table="duration"),
    Feature(name="tab", table="tab"),
    Feature(name="hour", table="hour"),
    Feature(name="pause", table="pause"),
    Feature(name="recent_videos", table="video"),
)
USER_CATEGORIES = (
    "user_active_degree",
    "is_lowactive_period",
    "is_live_streamer",
    "is_video_author",
    "follow_user_num_range",
    "fans_user_num_range",
    "friend_user_num_range",
    "register_days_range",
    *(f"onehot_feat{number}" for number in range(18)),
)
VIDEO_CATEGORIES = ("video_type", "upload_type", "music_type")

_HOUR_MS = 3_600_000
_BEIJING_MS = 8 * _HOUR_MS


def read_kuairand(directory: Path, *, max_history: int) -> Log:
    """Reads a directory. The last day of the log is for evaluation.

    Args:
        directory: directory in the format above.
        max_history: longest list of videos that a user was shown before.
    Raises:
        DataError: a file is missing or does not follow the format.
    """
    rows, num_repeated = _read_rows(directory)
    user_ids, video_ids, time_ms = (integer_column(rows, name) for name in ("user_id", "video_id", "time_ms"))
    labels = np.stack([integer_column(rows, name) for name in LABELS], axis=1)
    if not np.isin(labels, (0, 1)).all():
        raise DataError(f"{directory}: a value of {' or '.join(LABELS)} is neither 0 nor 1")
    earlier = earlier_videos(directory)
    shown = Events(*map(np.concatenate, zip(earlier, (user_ids, time_ms, video_ids), strict=True)))
    local_ms = time_ms + _BEIJING_MS
    day = local_ms // (24 * _HOUR_MS)
    return Log(
        features=FEATURES,
        columns={
            "user_id": single(user_ids),
            "video_id": single(video_ids),
            "duration": single(log_bucket(integer_column(rows, "duration_ms") / 1000, per_doubling=4)),
            "tab": single(integer_column(rows, "tab")),
            "hour": single(local_ms // _HOUR_MS % 24),
            "pause": _pause(user_ids, time_ms),
            "recent_videos": recent_items(shown, max_items=max_history, num_asked=len(rows)),
            **_read_users(directory, user_ids),
            **_read_videos(directory, video_ids),
        },
        label_names=LABELS,
        labels=torch.from_numpy(labels.astype(np.float32)),
        user_ids=torch.tensor(user_ids),
        rate_features=("user_id", "video_id", "tab"),
        num_train=int((day < day[-1]).sum()),
        times_ms=torch.tensor(time_ms),
        remark=f"{num_repeated} repeated rows left out, {len(earlier.items)} videos shown before the log",
    )


def _read_rows(directory: Path) -> tuple[pa.Table, int]:
    """Reads the log. Returns its events in time order without duplicates, and the number of duplicate rows."""
    names = ("user_id", "video_id", "time_ms", "duration_ms", "tab", *LABELS)
    rows = read_csv(find_csv_files(directory, LOG_STEM), integers=names)
    in_time = rows.take(np.argsort(integer_column(rows, "time_ms"), kind="stable"))
    events = in_time.take(first_of_each([integer_column(in_time, name) for name in ("user_id", "video_id", "time_ms")]))
    return events, len(rows) - len(events)


def earlier_videos(directory: Path) -> Events:
    """Reads the videos shown before the log. All of a user get the time of the last one, so none is dated too early.

    Raises:
        DataError: a file cannot be read or lacks a column, or an id is not an integer or does not fit int64.
    """
    parts = [Events(*(np.empty(0, dtype=np.int64),) * 3)]
    for path in sorted(directory.glob("histories*.parquet")):
        try:
            table = pq.read_table(path, columns=["user_id", "last_time_ms", "watch_seq"])
        except (OSError, KeyError, pa.ArrowException) as error:
            raise DataError(f"{path}: {error}") from error
        parts.append(_events_of(path, table))
    return Events(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _events_of(path: Path, table: pa.Table) -> Events:
    """Creates one event for each video of each list."""
    lacking = [name for name in ("user_id", "last_time_ms", "watch_seq") if name not in table.column_names]
    if lacking:
        raise DataError(f"{path}: no column {', '.join(lacking)}")
    user_ids, last_ms = (
        id_values(table.column(name), where=f"{path}: column {name!r}") for name in ("user_id", "last_time_ms")
    )
    items, row = id_lists(table.column("watch_seq"), where=f"{path}: column 'watch_seq'")
    return Events(user_ids[row], last_ms[row], items)


def _pause(user_ids: Ids, time_ms: Ids) -> Jagged:
    """Bucket of the time since the user's previous row; an empty list for the user's first row."""
    last = recent_items(Events(user_ids, time_ms, time_ms), max_items=1, num_asked=len(time_ms))
    lengths = last.lengths.numpy()
    pause_s = (time_ms[lengths == 1] - last.values.numpy()) / 1000
    return lists(log_bucket(pause_s, per_doubling=2), lengths)


def _read_users(directory: Path, user_ids: Ids) -> dict[str, Jagged]:
    """Reads the columns of user features for each row; empty lists for a user without features."""
    users = read_csv(find_csv_files(directory, "user_features"), integers=["user_id"], texts=USER_CATEGORIES)
    profile = side_by_side([hashed(name, users.column(name).to_numpy()) for name in USER_CATEGORIES])
    return _joined(directory, {"user_profile": profile}, integer_column(users, "user_id"), user_ids)


def _read_videos(directory: Path, video_ids: Ids) -> dict[str, Jagged]:
    """Reads the columns of video features for each row; empty lists for a video without features."""
    videos = read_csv(
        find_csv_files(directory, "video_features_basic"),
        integers=["video_id", "author_id", "music_id"],
        texts=[*VIDEO_CATEGORIES, "tag"],
    )
    sides = {
        "author_id": single(integer_column(videos, "author_id")),
        "music_id": single(integer_column(videos, "music_id")),
        "video_profile": side_by_side([hashed(name, videos.column(name).to_numpy()) for name in VIDEO_CATEGORIES]),
        "tags": _tags(directory, videos.column("tag").combine_chunks()),
    }
    return _joined(directory, sides, integer_column(videos, "video_id"), video_ids)


def _tags(directory: Path, texts: pa.StringArray) -> Jagged:
    """Parses lists of comma-separated integers; an empty text is an empty list."""
    tags = pc.split_pattern(pc.if_else(pc.equal(texts, ""), None, texts), ",")
    try:
        ids = pc.cast(tags.flatten(), pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise DataError(f"{directory}: column 'tag' of video_features_basic*: {error}") from error
    return lists(ids, pc.fill_null(pc.list_value_length(tags), 0).to_numpy())


def _joined(directory: Path, sides: dict[str, Jagged], side_keys: Ids, keys: Ids) -> dict[str, Jagged]:
    try:
        return {name: joined(side, side_keys, keys) for name, side in sides.items()}
    except ValueError as error:
        raise DataError(f"{directory}: features of users or videos: {error}") from error
