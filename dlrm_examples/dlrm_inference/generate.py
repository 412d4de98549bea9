# SPDX-License-Identifier: Apache-2.0
"""Writes synthetic logs in the formats of Criteo and Ali-CCP. Ids follow a power law.

Criteo logs have the cardinalities of the published logs. Their clicks are those of a known model
(``support/data/planted_clicks.py``) with ``--planted``, and random otherwise.

python -m dlrm_examples.dlrm_inference.generate criteo sample.tsv --rows 100000
python -m dlrm_examples.dlrm_inference.generate ali_ccp sample_directory --rows 100000
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from dlrm_examples.support.data.ali_ccp import COMMON_PREFIX, FIELDS, SKELETON_PREFIX, WEIGHTED_FIELDS
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES, NUM_INTEGERS, TERABYTE_CARDINALITIES
from dlrm_examples.support.data.planted_clicks import click_probabilities
from dlrm_examples.support.data.zipf import draw_zipf, scatter_32_bits

ZIPF_EXPONENT = 1.1
CLICK_RATE = 0.25
MISSING_INTEGER_RATE = 0.2
MISSING_CATEGORY_RATE = 0.03
NEGATIVE_INTEGER = 2
"""The integer column (1-based) that holds negative values in Criteo's logs."""

# Chosen number of ids of each Ali-CCP field; the largest equals the largest table (about two million) of
# arXiv 2512.19342.
# fmt: off
ALI_CCP_CARDINALITIES = dict(zip(FIELDS, (
    240_000, 98, 14, 3, 8, 4, 4, 3, 5, 2_000_000, 7_000, 264_000, 106_000, 80_000, 4, 5_900, 105_000, 52_000, 37_000,
    5_900, 105_000, 54_000, 32_000,
), strict=True))
# fmt: on
_USER_FIELDS = FIELDS[:9] + FIELDS[-4:]
"""Fields of the common-features file; the skeleton has the others."""
_ROWS_PER_CHUNK = 8192


def write_criteo_log(
    path: Path,
    *,
    num_rows: int,
    cardinalities: tuple[int, ...] = KAGGLE_CARDINALITIES,
    exponent: float = ZIPF_EXPONENT,
    seed: int = 0,
    planted_model: int | None = None,
) -> None:
    """Writes a Criteo log, gzip-compressed if ``path`` ends in ``.gz``. Replaces an existing file at the end.

    Args:
        path: the file.
        num_rows: rows to write.
        cardinalities: ids of each categorical column.
        exponent: skew of the ids' popularity.
        seed: seed of the random numbers.
        planted_model: seed of the model that clicks follow; None: they are random.
    """
    random = np.random.default_rng(seed)
    partial = path.with_name(f".{os.getpid()}-{path.name}")
    with _create(partial, compressed=path.suffix == ".gz") as stream:
        for start in range(0, num_rows, _ROWS_PER_CHUNK):
            rows = min(_ROWS_PER_CHUNK, num_rows - start)
            clicks = random.random(rows)
            columns = [_integers(random, rows, column) for column in range(1, NUM_INTEGERS + 1)]
            ids = []
            for table, cardinality in enumerate(cardinalities):
                ids.append(draw_zipf(random, num_values=cardinality, exponent=exponent, size=rows))
                columns.append(_categories(random, ids[-1], table))
            rates: float | npt.NDArray[np.float64] = CLICK_RATE
            if planted_model is not None:
                missing = [np.array([not field for field in fields]) for fields in columns[NUM_INTEGERS:]]
                rates = click_probabilities(ids, click_rate=CLICK_RATE, seed=planted_model, is_missing=missing)
            columns.insert(0, ["1" if clicked else "0" for clicked in clicks < rates])
            stream.write("".join("\t".join(fields) + "\n" for fields in zip(*columns, strict=True)).encode())
    partial.replace(path)


def write_ali_ccp_log(
    directory: Path, *, num_rows: int, rows_per_group: int = 8, exponent: float = ZIPF_EXPONENT, seed: int = 0
) -> None:
    """Writes the two files of Ali-CCP: a skeleton (labels and item features) and the common features (of users).

    ``rows_per_group`` consecutive rows share the user's features.
    """
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    num_groups = -(-num_rows // rows_per_group)
    item_fields = tuple(field for field in FIELDS if field not in _USER_FIELDS)
    with (directory / f"{COMMON_PREFIX}_train.csv").open("w") as stream:
        for group, features in enumerate(_feature_lists(random, num_groups, _USER_FIELDS, exponent)):
            stream.write(f"{group:x},{len(features)},{chr(1).join(features)}\n")
    with (directory / f"{SKELETON_PREFIX}_train.csv").open("w") as stream:
        clicks = random.random(num_rows) < 0.04
        for row, features in enumerate(_feature_lists(random, num_rows, item_fields, exponent)):
            group = row // rows_per_group
            # Sample id, click, conversion (always 0), id of the common features, number of features, features.
            stream.write(f"{row + 1},{int(clicks[row])},0,{group:x},{len(features)},{chr(1).join(features)}\n")


def _create(path: Path, *, compressed: bool) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return gzip.open(path, "wb", compresslevel=1) if compressed else path.open("wb")  # type: ignore[return-value]


def _integers(random: np.random.Generator, rows: int, column: int) -> list[str]:
    """Draws counts with a long tail and missing values. Column NEGATIVE_INTEGER reaches down to -3."""
    values = np.exp(random.normal(1.5, 1.5, rows)).astype(np.int64)
    if column == NEGATIVE_INTEGER:
        values -= 3
    return _with_missing(random, [str(value) for value in values.tolist()], MISSING_INTEGER_RATE)


def _categories(random: np.random.Generator, popularity_ranks: npt.NDArray[np.int64], table: int) -> list[str]:
    hashes = scatter_32_bits(popularity_ranks, salt=table)
    return _with_missing(random, [f"{value:08x}" for value in hashes.tolist()], MISSING_CATEGORY_RATE)


def _with_missing(random: np.random.Generator, fields: list[str], rate: float) -> list[str]:
    missing: npt.NDArray[np.bool_] = random.random(len(fields)) < rate
    for index in np.flatnonzero(missing):
        fields[index] = ""
    return fields


def _feature_lists(
    random: np.random.Generator, rows: int, fields: tuple[str, ...], exponent: float
) -> Iterator[list[str]]:
    """Yields the features of each row: one per field, but one to four per weighted field, valued log(count + 1)."""
    for start in range(0, rows, _ROWS_PER_CHUNK):
        chunk = min(_ROWS_PER_CHUNK, rows - start)
        features: list[list[str]] = [[] for _ in range(chunk)]
        for field in fields:
            weighted = field in WEIGHTED_FIELDS
            repeats = random.integers(1, 5, chunk) if weighted else np.ones(chunk, dtype=np.int64)
            ids = draw_zipf(random, num_values=ALI_CCP_CARDINALITIES[field], exponent=exponent, size=int(repeats.sum()))
            values = np.log(random.integers(1, 20, ids.size) + 1) if weighted else np.ones(ids.size)
            rows_of = np.repeat(np.arange(chunk), repeats)
            for row, feature_id, value in zip(rows_of.tolist(), ids.tolist(), values.tolist(), strict=True):
                features[row].append(f"{field}\x02{feature_id}\x03{value:.5f}")
        yield from features


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dlrm_examples.dlrm_inference.generate", description="Write a synthetic click log."
    )
    parser.add_argument("format", choices=("criteo", "ali_ccp"), help="format of the log")
    parser.add_argument("path", type=Path, help="file (criteo; .gz compresses) or directory (ali_ccp) to write")
    parser.add_argument("--rows", type=int, default=100_000, help="rows to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers (default: %(default)s)")
    parser.add_argument(
        "--cardinalities", choices=("kaggle", "terabyte"), default="kaggle", help="criteo: which log's table sizes"
    )
    parser.add_argument(
        "--exponent", type=float, default=ZIPF_EXPONENT, help="skew of the ids' popularity (default: %(default)s)"
    )
    parser.add_argument(
        "--planted", type=int, metavar="SEED", help="criteo: clicks follow a model of this seed (default: none)"
    )
    options = parser.parse_args(arguments)
    if options.rows < 1:
        parser.error(f"--rows must be at least 1, not {options.rows}")
    if options.exponent <= 0 or options.exponent == 1:
        parser.error(f"--exponent must be above 0 and not exactly 1, not {options.exponent}")
    if options.planted is not None and (options.format != "criteo" or options.planted < 0):
        parser.error(f"--planted needs the format criteo and a seed from 0, not {options.format} and {options.planted}")
    if options.format == "criteo":
        sizes = KAGGLE_CARDINALITIES if options.cardinalities == "kaggle" else TERABYTE_CARDINALITIES
        write_criteo_log(
            options.path, num_rows=options.rows, cardinalities=sizes, exponent=options.exponent, seed=options.seed,
            planted_model=options.planted,
        )  # fmt: skip
    else:
        write_ali_ccp_log(options.path, num_rows=options.rows, exponent=options.exponent, seed=options.seed)
    print(f"wrote {options.rows} rows to {options.path}")


if __name__ == "__main__":
    main()
