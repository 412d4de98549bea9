"""Reader of Criteo's click logs (lines in time order). Features: all categories, and all integers in buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dlrm_examples.bls_dlrm.criteo import CRITEO, line_parser
from dlrm_examples.bls_dlrm.log_files import read_blocks
from dlrm_examples.bls_dlrm.log_format import DataError
from dlrm_examples.bls_dlrm.usable_lines import UsableLines
from dlrm_examples.dynamic_ctr.columns import log_bucket, single
from dlrm_examples.dynamic_ctr.log import Feature, Log

FEATURES = tuple(Feature(name=name, table=name) for name in (*CRITEO.dense_names, *CRITEO.sparse_names))
TRAIN_SHARE = 0.8
MISSING = -1
"""Id of a missing value. Buckets do not reach it, and the category with these 64 bits is refused."""

_parse_line = line_parser(category_digits=16)


def read_criteo(path: Path) -> Log:
    """Reads a file or a directory of files into memory. The last fifth of the rows is for evaluation.

    Categories may have up to 16 hexadecimal digits. Files without a usable row are skipped; ``Log.remark`` names them.

    Args:
        path: file or directory in the format of ``bls_dlrm.criteo``.
    Raises:
        DataError: a line of a file with usable rows does not follow the format, or there is no usable row.
    """
    lines = UsableLines()
    rows = [row for block in read_blocks(CRITEO.list_row_files(path)) for row in lines.parse(block, _parse_line)]
    malformed = lines.malformed_lines()
    if malformed.count:
        raise DataError(f"{malformed.count} malformed lines; the first: {malformed.reports[0]}")
    if not rows:
        raise DataError(f"{path}: no row")
    integers = np.array([[np.nan if value is None else value for value in row.dense] for row in rows])
    buckets = np.where(np.isnan(integers), MISSING, log_bucket(np.nan_to_num(integers), per_doubling=2))
    if any(MISSING in row.sparse for row in rows):
        raise DataError(f"{path}: a category is ffffffffffffffff, which stands for a missing value")
    categories = np.array([[MISSING if value is None else value for value in row.sparse] for row in rows], np.int64)
    ids = np.concatenate([buckets, categories], axis=1)
    return Log(
        features=FEATURES,
        columns={feature.name: single(column) for feature, column in zip(FEATURES, ids.T, strict=True)},
        label_names=("click",),
        labels=torch.tensor([[float(row.label)] for row in rows]),
        user_ids=None,
        rate_features=CRITEO.sparse_names,
        num_train=int(TRAIN_SHARE * len(rows)),
        remark="; ".join(f"passed over {note}" for note in lines.passed_over()),
    )
