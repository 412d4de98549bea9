"""What benchmarks of embedding layers share: tables for unknown ids beside FBGEMM's static ones, which know them."""

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
from benchmarks.harness.table import format_ratio, format_table, format_time
from dlrm_examples.bls_dlrm.zipf import draw_zipf

FBGEMM, HEADWAY = "fbgemm", "headway"
#: Makes ids out of rows of a static table: odd, so that no two are the same.
SCATTER = 0x1E3779B97F4A7C15


def table_names(options: argparse.Namespace) -> list[str]:
    return [f"t{number}" for number in range(options.tables)]


def draw_rows(options: argparse.Namespace, random: np.random.Generator) -> torch.Tensor:
    """(tables, batch * length) int64: rows that are looked up."""
    size = options.tables * options.batch * options.length
    rows = draw_zipf(random, num_values=options.rows, exponent=options.exponent, size=size)
    return torch.from_numpy(rows).view(options.tables, -1)


def make_collection(
    options: argparse.Namespace, optimizer: Optimizer, pooling: Any, **more: Any
) -> HashTableCollection:
    """Tables that merge into one, with a feature each; ``more`` are options of the collection."""
    names = table_names(options)
    return HashTableCollection(
        tables=[
            TableConfig(name, dim=options.dim, optimizer=optimizer, initializer=Uniform(-0.05, 0.05)) for name in names
        ],
        features=[FeatureConfig(name, table=name, pooling=pooling) for name in names],
        **more,
    )


def import_fbgemm() -> Any:
    """What is used of FBGEMM.

    Raises:
        BenchmarkError: it is not installed.
    """
    logging.getLogger().setLevel(logging.ERROR)  # It warns of a table of versions without an entry.
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
    """The same, or None where it is to be left out: with ``--against none``, or where it is missing, with a note.

    Raises:
        BenchmarkError: ``--against`` names it, and it is not installed.
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
    """One of each system.

    Args:
        params: ``tables``, ``batch`` and ``length`` among them; with ``ranks``, a batch is that of one.
        seconds: by system, of each turn.
        reference: the system that ratios are taken to, where it was measured.
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
    """The table: one row for each point, by the parameters ``columns``."""
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
