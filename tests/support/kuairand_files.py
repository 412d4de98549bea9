# SPDX-License-Identifier: Apache-2.0
"""Writes small files in the format of KuaiRand, a public log of a short-video app: user and video features."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from dlrm_examples.support.data.kuairand import USER_CATEGORIES

DAY_MS = 86_400_000
FIRST_MS = 1_650_816_000_000  # 25 April 2022, 00:00 in Beijing, in milliseconds.
LOG_COLUMNS = ("user_id", "video_id", "hourmin", "time_ms", "is_click", "long_view", "duration_ms", "tab")
VIDEO_COLUMNS = ("video_id", "author_id", "music_id", "video_type", "upload_type", "music_type", "tag")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a CSV file with a header line, compressed if the name says so."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *rows])
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_features(directory: Path, *, num_users: int, num_videos: int) -> None:
    """Writes features of users and videos 0, 1, ... Every third video has no tag; the others have one or two."""
    write_csv(
        directory / "user_features_pure.csv.gz",
        ("user_id", *USER_CATEGORIES),
        ([user, *(f"{user % 3}" for _ in USER_CATEGORIES)] for user in range(num_users)),
    )
    write_csv(
        directory / "video_features_basic_pure.csv",
        VIDEO_COLUMNS,
        (
            [video, 100 + video, 10**10 + video, "NORMAL", "Web", 9.0, ["", "7", "7,39"][video % 3]]
            for video in range(num_videos)
        ),
    )
