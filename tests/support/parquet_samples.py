# SPDX-License-Identifier: Apache-2.0
"""Small Parquet folders of samples for tests.

A sample is a row: a user's history of events, and targets, the items to score.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from headway.data import SampleSchema

SCHEMA = SampleSchema(
    context=("user",), events=("item", "shop"), actions=("action",), labels=("click", "buy"), group="user"
)


def make_rows(num_rows: int, *, seed: int = 0) -> dict[str, list[Any]]:
    """Draws samples of 0 to 6 events of history and 1 to 3 targets. A target is only bought if it is clicked."""
    draw = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {name: [] for name in SCHEMA.columns}
    for number in range(num_rows):
        history, targets = int(draw.integers(0, 7)), int(draw.integers(1, 4))
        times = np.sort(draw.integers(0, 1000, history + targets))
        rows["user"].append(number - 3)  # Ids may be negative.
        for name in SCHEMA.events:
            rows[name].append(draw.integers(0, 40, history).tolist())
            rows[f"target_{name}"].append(draw.integers(0, 40, targets).tolist())
        rows["action"].append(draw.integers(0, 3, history).tolist())
        rows["time"].append(times[:history].tolist())
        rows["target_time"].append(times[history:].tolist())
        clicks = draw.integers(0, 2, targets)
        rows["click"].append(clicks.tolist())
        rows["buy"].append((clicks * draw.integers(0, 2, targets)).tolist())
    return rows


def write_folder(folder: Path, rows: dict[str, list[Any]], *, files: int = 1, row_group: int = 10) -> Path:
    """Writes rows to ``files`` files of about equal size, with ``row_group`` rows per row group."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(rows)
    size = -(-table.num_rows // files)
    for index in range(files):
        part = table.slice(index * size, size)
        pq.write_table(part, folder / f"part-{index}.parquet", row_group_size=row_group)
    return folder
