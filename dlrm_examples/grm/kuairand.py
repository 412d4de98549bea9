# SPDX-License-Identifier: Apache-2.0
"""Writes KuaiRand's standard log as Parquet folders of samples: ``python -m dlrm_examples.grm.kuairand LOG OUT``.

Idea: the exposures of a user on a day are cut into samples of up to ``TARGETS`` targets. The history of a sample has
the videos that the user was shown before, oldest first: those before the log, and those of the log. The last day is for
evaluation. Samples are in the order of time.

Example: user 7 saw a on day 1, b and c on day 2. The sample of day 2 has the targets b and c, and the history a with
the action of day 1.

Invariants: an action is known from the next day on. So a label of a day never helps to predict another one of that day,
as in the comparison of ``streaming_ctr``. Videos before the log have no known action.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlrm_examples.support.data.columns import Events
from dlrm_examples.support.data.kuairand import LABELS, VIDEO_CATEGORIES, earlier_videos, read_kuairand
from dlrm_examples.support.data.log import Jagged, Log
from dlrm_examples.support.data.log_format import DataError

TARGETS, HISTORY = 10, 60  #: Most targets of a sample, and most events of its history.
EVENTS = ("video", "author", "music", "tag", "upload", "duration", "tab", "hour", "pause")
"""Features of an event of the history, and of a target. A pause is the time since the user's previous exposure. Pause
and duration are indices of logarithmic buckets."""
_OF_EXPOSURE = ("tab", "hour", "pause")  #: Features that belong to an exposure, not to a video.
PROFILE = tuple(f"profile_{index}" for index in range(8))  #: The log's user categories, without one-hot features.
_NONE = -1  #: Id of a feature that a row lacks.
_UNKNOWN_ACTION = 0  #: Known actions are 1 and more: see ``_Rows._action()``.
_DAY_MS, _BEIJING_MS = 86_400_000, 28_800_000  #: A day, and the offset of Beijing time from UTC.


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit status."""
    if len(argv) != 2:
        print("usage: python -m dlrm_examples.grm.kuairand LOG_FOLDER OUT_FOLDER", file=sys.stderr)
        return 2
    try:
        num_train, num_evaluation = write_samples(Path(argv[0]), Path(argv[1]))
    except DataError as error:
        print(f"kuairand: {error}", file=sys.stderr)
        return 1
    print(f"{num_train:,} samples to train on, {num_evaluation:,} to evaluate on")
    return 0


def write_samples(log_folder: Path, out: Path) -> tuple[int, int]:
    """Writes ``train/`` and ``evaluation/`` below ``out``; returns the numbers of samples.

    Raises:
        DataError: the log cannot be read.
    """
    # The reader's own histories are not used, hence the shortest; _Rows builds them with actions.
    rows = _Rows(read_kuairand(log_folder, max_history=1), earlier_videos(log_folder))
    samples: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for sample, is_last_day in rows.samples():
        samples[is_last_day].append(sample)
    for is_last_day, name in ((False, "train"), (True, "evaluation")):
        (out / name).mkdir(parents=True, exist_ok=True)
        in_time = sorted(samples[is_last_day], key=lambda sample: int(sample["target_time"][0]))
        table = pa.Table.from_pylist(in_time)
        pq.write_table(table, out / name / "samples.parquet", row_group_size=256)
    return len(samples[False]), len(samples[True])


class _Rows:
    """The exposures of the log, and the videos shown before it, as columns of events."""

    def __init__(self, log: Log, earlier: Events) -> None:
        columns = log.columns
        self.user = columns["user_id"].values.numpy()
        self.labels = log.labels.numpy().astype(np.int64)
        assert log.times_ms is not None, "the reader tells times"
        self.time = log.times_ms.numpy()
        self.day = (self.time + _BEIJING_MS) // _DAY_MS
        names = ("video_id", "author_id", "music_id", "tags", "video_profile", "duration", *_OF_EXPOSURE)
        self.events = {name: _first(columns[of]) for name, of in zip(EVENTS, names, strict=True)}
        self.events["upload"] = _at(columns["video_profile"], VIDEO_CATEGORIES.index("upload_type"))
        profile = columns["user_profile"]
        width = int(profile.lengths.max())
        starts = np.cumsum(profile.lengths.numpy()) - profile.lengths.numpy()
        self.profile = np.full((len(self.user), width), _NONE)
        has_profile = profile.lengths.numpy() == width
        self.profile[has_profile] = profile.values.numpy()[starts[has_profile, None] + np.arange(width)]
        self.earlier = _by_user(earlier.user_ids, earlier.times, earlier.items)
        self._row_of_video = {int(video): row for row, video in enumerate(self.events["video"])}

    def samples(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yields samples, and whether they are of the last day."""
        order = np.lexsort((self.time, self.user))
        last_day = int(self.day.max())
        for rows in np.split(order, np.flatnonzero(np.diff(self.user[order])) + 1):
            history = self._earlier_events(int(self.user[rows[0]]))
            for of_day in np.split(rows, np.flatnonzero(np.diff(self.day[rows])) + 1):
                shown = [(*self._event(row), _UNKNOWN_ACTION, int(self.time[row])) for row in of_day]
                for begin in range(0, len(of_day), TARGETS):
                    targets = of_day[begin : begin + TARGETS]
                    yield self._sample((history + shown[:begin])[-HISTORY:], targets), self.day[of_day[0]] == last_day
                history += [
                    (*event[:-2], self._action(row), event[-1]) for event, row in zip(shown, of_day, strict=True)
                ]

    def _earlier_events(self, user: int) -> list[tuple[int, ...]]:
        times, videos = self.earlier.get(user, ((), ()))
        return [
            (*self._known(int(video)), _UNKNOWN_ACTION, int(time)) for time, video in zip(times, videos, strict=True)
        ]

    def _event(self, row: int) -> tuple[int, ...]:
        return tuple(int(self.events[name][row]) for name in EVENTS)

    def _known(self, video: int) -> tuple[int, ...]:
        """Returns what the log tells of a video, without the circumstances of an exposure."""
        row = self._row_of_video.get(video)
        if row is None:
            return (video, *(_NONE,) * (len(EVENTS) - 1))
        return tuple(_NONE if name in _OF_EXPOSURE else int(self.events[name][row]) for name in EVENTS)

    def _action(self, row: int) -> int:
        """1 plus a bit set: 1 for the first label (click), 2 for the second (long view)."""
        return 1 + int(self.labels[row, 0]) + 2 * int(self.labels[row, 1])

    def _sample(self, history: list[tuple[int, ...]], targets: np.ndarray[Any, Any]) -> dict[str, Any]:
        names = (*EVENTS, "action", "time")
        columns = dict(zip(names, zip(*history, strict=True), strict=True)) if history else dict.fromkeys(names, ())
        sample: dict[str, Any] = {"user": int(self.user[targets[0]])}
        sample |= {name: int(self.profile[targets[0], index]) for index, name in enumerate(PROFILE)}
        sample |= {name: np.array(columns[name], dtype=np.int64) for name in names}
        sample |= {f"target_{name}": self.events[name][targets] for name in EVENTS}
        sample["target_time"] = self.time[targets]
        return sample | {name: self.labels[targets, index] for index, name in enumerate(LABELS)}


def _first(column: Jagged) -> np.ndarray[Any, Any]:
    """Returns the first id of each row, (E,) int64."""
    return _at(column, 0)


def _at(column: Jagged, index: int) -> np.ndarray[Any, Any]:
    """Returns the id at ``index`` in the list of each row, (E,) int64; ``_NONE`` for shorter lists."""
    lengths = column.lengths.numpy()
    starts = np.cumsum(lengths) - lengths
    ids = np.full(len(lengths), _NONE)
    ids[lengths > index] = column.values.numpy()[starts[lengths > index] + index]
    return ids


def _by_user(users: Any, times: Any, items: Any) -> dict[int, tuple[Any, Any]]:
    """Returns the times and items of each user, oldest first."""
    order = np.lexsort((np.arange(len(users)), times, users))
    bounds = np.flatnonzero(np.diff(users[order])) + 1
    parts = np.split(order, bounds) if len(order) else []
    return {int(users[part[0]]): (times[part], items[part]) for part in parts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
