# SPDX-License-Identifier: Apache-2.0
"""Generated logs whose labels depend on the history.

Idea: each user likes two of the topics. Half of the events are of these, the others of any topic. Action 1 means that
the user liked the item; this is likely for liked topics and rare for others. A target of a liked topic is clicked with
a high probability, and bought with half of that. Each user is in one sample only, so neither users nor items alone tell
anything: a model must compare targets with the history.

Example: user 7 likes topics 2 and 5. The history has (item 10, topic 2, liked), (item 41, topic 1, not liked). A target
of topic 5 has a click with probability 0.8, one of topic 1 with 0.1. The topic of an item is its id modulo 8.

Invariant: the probabilities are in the files, in column ``click_probability``, so the best possible AUC is known.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_TOPICS, NUM_ITEMS = 8, 400
_LIKED, _OTHER = 0.8, 0.1  #: Probability of a click.


def write_log(folder: Path, *, num_samples: int, seed: int, first_user: int = 0, row_group: int = 128) -> None:
    """Writes samples with 8 to 31 events of history and 4 targets each, as one Parquet file in a new folder.

    Each sample has a user of its own, from ``first_user`` on. ``row_group`` is the number of samples of a row group.
    """
    draw = np.random.default_rng(seed)
    columns: dict[str, list[object]] = defaultdict(list)
    for user in range(first_user, first_user + num_samples):
        liked = draw.choice(NUM_TOPICS, 2, replace=False)
        history, targets = int(draw.integers(8, 32)), 4
        items = draw.integers(0, NUM_ITEMS, history + targets)
        topics = items % NUM_TOPICS
        # Half of all events and targets get a liked topic. The others keep a random one, which may be liked too.
        wanted = draw.random(history + targets) < 0.5
        topics = np.where(wanted, draw.choice(liked, history + targets), topics)
        items = items // NUM_TOPICS * NUM_TOPICS + topics
        is_liked = np.isin(topics, liked)
        actions = draw.random(history) < np.where(is_liked[:history], 0.9, 0.1)
        click_probability = np.where(is_liked[history:], _LIKED, _OTHER)
        clicks = draw.random(targets) < click_probability
        times = np.sort(draw.integers(0, 86_400, history + targets))
        values = {
            "user": user,
            "item": items[:history],
            "topic": topics[:history],
            "action": actions.astype(np.int64),
            "time": times[:history],
            "target_item": items[history:],
            "target_topic": topics[history:],
            "target_time": times[history:],
            "click": clicks.astype(np.int64),
            "buy": (clicks & (draw.random(targets) < 0.5)).astype(np.int64),
            "click_probability": click_probability,
        }
        for name, value in values.items():
            columns[name].append(value.tolist() if isinstance(value, np.ndarray) else value)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "log.parquet", row_group_size=row_group)
