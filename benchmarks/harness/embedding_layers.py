# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks of embedding layers: dynamic tables beside FBGEMM's static tables.

Dynamic tables are hash tables that insert an id at its first lookup. Static tables have one row per id from the start.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from headway.embedding import FeatureConfig, HashTableCollection, Optimizer, TableConfig, Uniform

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.points import Params, Point
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

FBGEMM, HEADWAY = "fbgemm", "headway"
#: Multiplier that turns rows of a static table into ids. It is odd, so no two ids are equal.
ID_MULTIPLIER = 0x1E3779B97F4A7C15


def table_names(options: argparse.Namespace) -> list[str]:
    return [f"t{number}" for number in range(options.tables)]


def draw_rows(options: argparse.Namespace, random: np.random.Generator) -> torch.Tensor:
    """Draws the rows to look up: (tables, batch * length) int64."""
    size = options.tables * options.batch * options.length
    rows = draw_zipf(random, num_values=options.rows, exponent=options.exponent, size=size)
    return torch.from_numpy(rows).view(options.tables, -1)


def make_collection(
    options: argparse.Namespace, optimizer: Optimizer, pooling: Any, **more: Any
) -> HashTableCollection:
    """Makes tables with one feature each. Their equal configuration lets the collection merge them into one table.

    ``pooling`` is "sum", or None for one output per id. ``more`` holds further options of the collection.
    """
    names = table_names(options)
    return HashTableCollection(
        tables=[
            TableConfig(name, dim=options.dim, optimizer=optimizer, initializer=Uniform(-0.05, 0.05)) for name in names
        ],
        features=[FeatureConfig(name, table=name, pooling=pooling) for name in names],
        **more,
    )


def import_fbgemm() -> Any:
    """Imports the used parts of FBGEMM.

    Raises:
        BenchmarkError: FBGEMM is not installed.
    """
    logging.getLogger().setLevel(logging.ERROR)  # FBGEMM warns about a table of versions without an entry.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from fbgemm_gpu.split_embedding_configs import EmbOptimType
            from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
                BoundsCheckMode,
                EmbeddingLocation,
                PoolingMode,
            )
            from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
                ComputeDevice,
                SplitTableBatchedEmbeddingBagsCodegen,
            )
    except (ImportError, OSError) as error:  # OSError: a library of the package does not load.
        raise BenchmarkError(f"FBGEMM is not installed: {error}") from error
    return SimpleNamespace(
        BoundsCheckMode=BoundsCheckMode,
        ComputeDevice=ComputeDevice,
        EmbOptimType=EmbOptimType,
        EmbeddingLocation=EmbeddingLocation,
        PoolingMode=PoolingMode,
        SplitTableBatchedEmbeddingBagsCodegen=SplitTableBatchedEmbeddingBagsCodegen,
    )


def find_fbgemm(options: argparse.Namespace) -> Any | None:
    """Imports FBGEMM, or returns None with ``--against none``. If FBGEMM is missing, prints a note and returns None.

    Raises:
        BenchmarkError: ``--against`` names FBGEMM and it is not installed.
    """
    if options.against == "none":
        return None
    try:
        return import_fbgemm()
    except BenchmarkError as error:
        if options.against is not None:
            raise
        print(f"{FBGEMM} is left out: {error}", file=sys.stderr, flush=True)
        return None


def make_points(
    name: str,
    params: Params,
    seconds: Mapping[str, Sequence[float]],
    *,
    reference: str = FBGEMM,
    **extra: Mapping[str, Any],
) -> list[Point]:
    """Makes one point for each system.

    Args:
        name: name of the benchmark.
        params: parameters, among them ``tables``, ``batch`` and ``length``. With ``ranks``, a batch belongs to one
            rank.
        seconds: seconds of each turn, by system.
        reference: ratios compare with this system if it was measured.
        extra: further fields, each by system.
    """
    num_ids = params.get("ranks", 1) * params["tables"] * params["batch"] * params["length"]
    points = []
    for system, values in seconds.items():
        more = {field: of_system[system] for field, of_system in extra.items()}
        ratio = None
        if system != reference and reference in seconds:
            ratio = median_interval([b / a for a, b in zip(values, seconds[reference], strict=True)])
            more |= {"ratio_low": ratio.low, "ratio_high": ratio.high}
        p5_s, p95_s = np.quantile(values, (0.05, 0.95)).tolist()
        median_s = statistics.median(values)
        points.append(
            Point(
                name=name, params=params, system=system, median_s=median_s, p5_s=p5_s, p95_s=p95_s,
                samples=len(values), rate=num_ids / median_s, unit="ids/s",
                ratio=None if ratio is None else ratio.median, extra=more,
            )
        )  # fmt: skip
    return points


def format_layers(points: Sequence[Point], columns: Sequence[str]) -> str:
    """Formats the table: one row for each point, with the parameters ``columns``."""
    others = {point.key: point for point in points if point.system == FBGEMM}
    rows = []
    for point in points:
        if point.system != HEADWAY:
            continue
        other = others.get(point.key)
        rows.append(
            (
                *(str(point.params[name]) for name in columns),
                format_time(point.median_s),
                "" if other is None else format_time(other.median_s),
                "" if other is None else format_ratio(point.ratio, point.extra["ratio_low"], point.extra["ratio_high"]),
            )
        )
    return format_table((*columns, "headway", "fbgemm (static)", "faster (95%)"), rows)
