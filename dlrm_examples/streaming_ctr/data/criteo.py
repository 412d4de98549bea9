# SPDX-License-Identifier: Apache-2.0
"""Reader of Criteo's click logs (lines in time order).

A row has 13 integers, which are counts, and 26 categories. All of them become features with ids: a category is its own
id, an integer the index of its bucket on a logarithmic scale, with two buckets per doubling.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from dlrm_examples.support.data.columns import log_bucket, single
from dlrm_examples.support.data.criteo import CRITEO, parse_lines
from dlrm_examples.support.data.log import Feature, Log
from dlrm_examples.support.data.log_files import read_blocks
from dlrm_examples.support.data.log_format import LABEL, DataError
from dlrm_examples.support.data.usable_lines import UsableLines

FEATURES = tuple(Feature(name=name, table=name) for name in (*CRITEO.dense_names, *CRITEO.sparse_names))
TRAIN_SHARE = 0.8
MISSING = -1
"""Id of a missing value. Bucket indices are at least 0, and the category with these 64 bits is refused."""

_parse_lines = partial(parse_lines, category_digits=16)


def read_criteo(path: Path) -> Log:
    """Reads a file or a directory of files into memory. The last fifth of the rows is for evaluation.

    Categories may have up to 16 hexadecimal digits. Files without a usable row are skipped; ``Log.remark`` names them.

    Args:
        path: file or directory in the format of ``dlrm_examples.support.data.criteo``.
    Raises:
        DataError: a line of a file with usable rows does not follow the format, or there is no usable row.
    """
    lines = UsableLines()
    parts = [lines.parse(block, _parse_lines) for block in read_blocks(CRITEO.list_row_files(path))]
    malformed = lines.malformed_lines()
    if malformed.count:
        raise DataError(f"{malformed.count} malformed lines; the first: {malformed.reports[0]}")
    if not lines.total_rows():
        raise DataError(f"{path}: no row")
    rows = pa.concat_tables(parts)
    integers = np.stack([rows[name].to_numpy() for name in CRITEO.dense_names], axis=1)
    buckets = np.where(np.isnan(integers), MISSING, log_bucket(np.nan_to_num(integers), per_doubling=2))
    if any(pc.any(pc.equal(rows[name], MISSING)).as_py() for name in CRITEO.sparse_names):
        raise DataError(f"{path}: a category is ffffffffffffffff, which stands for a missing value")
    categories = [rows[name].fill_null(MISSING).to_numpy() for name in CRITEO.sparse_names]
    ids = np.concatenate([buckets, np.stack(categories, axis=1)], axis=1)
    return Log(
        features=FEATURES,
        columns={feature.name: single(column) for feature, column in zip(FEATURES, ids.T, strict=True)},
        label_names=("click",),
        labels=torch.tensor(rows[LABEL].to_numpy(), dtype=torch.float32)[:, None],
        user_ids=None,
        rate_features=CRITEO.sparse_names,
        num_train=int(TRAIN_SHARE * len(rows)),
        remark="; ".join(f"passed over {note}" for note in lines.passed_over()),
    )
