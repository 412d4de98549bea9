# SPDX-License-Identifier: Apache-2.0
"""Samples made of KuaiRand's log: each exposure (a video shown to a user) is a target of one sample.

A sample has up to ``TARGETS`` targets of one user and day, and the user's history. An action of the history is 0 if
unknown, else ``1 + click + 2 * long view``. Actions are known from the next day on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kuairand_files import DAY_MS, FIRST_MS, LOG_COLUMNS, write_csv, write_features

from dlrm_examples.grm.kuairand import EVENTS, HISTORY, TARGETS, main

NUM_USERS, NUM_VIDEOS, NUM_DAYS = 4, 9, 3


def make_log(folder: Path) -> list[tuple[int, ...]]:
    """Writes a log of three days; returns its rows (as LOG_COLUMNS), with equal user, video and time at most once."""
    draw = np.random.default_rng(0)
    rows = {}
    for _ in range(300):
        user, video = int(draw.integers(NUM_USERS)), int(draw.integers(NUM_VIDEOS))
        time = FIRST_MS + int(draw.integers(NUM_DAYS * DAY_MS))
        click = int(draw.integers(2))
        rows[user, video, time] = (user, video, 0, time, click, click * int(draw.integers(2)), 5000, user % 3)
    write_csv(folder / "log_standard_0.csv", LOG_COLUMNS, rows.values())
    write_features(folder, num_users=NUM_USERS, num_videos=NUM_VIDEOS)
    # Videos that user 1 watched before the log, oldest first. Video 77 has no exposure in the log.
    earlier = {"user_id": [1], "last_time_ms": [FIRST_MS - 1000], "watch_seq": [[3, 4, 77]]}
    pq.write_table(pa.table(earlier), folder / "histories.parquet")
    return list(rows.values())


@pytest.fixture
def written(tmp_path: Path) -> tuple[list[tuple[int, ...]], dict[str, list[dict[str, Any]]]]:
    (tmp_path / "log").mkdir()
    rows = make_log(tmp_path / "log")
    assert main([str(tmp_path / "log"), str(tmp_path / "out")]) == 0
    read = {name: pq.read_table(tmp_path / "out" / name).to_pylist() for name in ("train", "evaluation")}
    return rows, read


def test_each_exposure_is_a_target_once_and_the_last_day_is_for_evaluation(written: Any) -> None:
    rows, read = written
    found = [
        (sample["user"], video, time, click, view)
        for samples in read.values()
        for sample in samples
        for video, time, click, view in zip(
            sample["target_video"], sample["target_time"], sample["is_click"], sample["long_view"], strict=True
        )
    ]
    assert sorted(found) == sorted((user, video, time, click, view) for user, video, _, time, click, view, *_ in rows)
    for name, samples in read.items():
        days = {(time - FIRST_MS) // DAY_MS for sample in samples for time in sample["target_time"]}
        assert days == ({NUM_DAYS - 1} if name == "evaluation" else set(range(NUM_DAYS - 1)))


def test_a_history_is_in_front_of_its_targets_and_has_actions_of_earlier_days_only(written: Any) -> None:
    rows, read = written
    action_of = {(user, time, video): 1 + click + 2 * view for user, video, _, time, click, view, *_ in rows}
    for sample in (*read["train"], *read["evaluation"]):
        assert sample["time"] == sorted(sample["time"]) and len(sample["time"]) <= HISTORY
        assert 1 <= len(sample["target_time"]) <= TARGETS
        first = min(sample["target_time"])
        day = (first - FIRST_MS) // DAY_MS
        for time, video, action in zip(sample["time"], sample["video"], sample["action"], strict=True):
            assert time <= first
            is_earlier_day = time >= FIRST_MS and (time - FIRST_MS) // DAY_MS < day
            assert action == (action_of[sample["user"], time, video] if is_earlier_day else 0)


def test_videos_before_the_log_are_known_as_far_as_the_log_tells(written: Any) -> None:
    _, read = written
    sample = min((each for each in read["train"] if each["user"] == 1), key=lambda each: each["target_time"])
    assert sample["video"][:3] == [3, 4, 77]
    # -1 is unknown. The author of video v is 100 + v; a tab belongs to an exposure of the log.
    assert sample["author"][:3] == [103, 104, -1] and sample["tab"][:3] == [-1] * 3
    assert all(len(sample[name]) == len(sample["video"]) for name in EVENTS)


def test_a_folder_without_a_log_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("kuairand: ")
    assert main([]) == 2
