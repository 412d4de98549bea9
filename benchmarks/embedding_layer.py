"""Forward, backward and update of an embedding layer on the CPU: tables for unknown ids, and FBGEMM's static ones.

Both look up the same ids, of which FBGEMM's tables have a row each from the start. Before anything is timed both start
with the same vectors and must agree after some steps. The layer has as many rows a table as there are ids.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from headway.embedding import FeatureConfig, HashTableCollection, RowWiseAdagrad, TableConfig, Uniform

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.table import format_ratio, format_table, format_time
from dlrm_examples.bls_dlrm.zipf import draw_zipf

DESCRIPTION = "an embedding layer on the CPU, forward, backward and update, against FBGEMM's static tables"

_LR, _EPS = 0.05, 1e-8
_FBGEMM, _HEADWAY = "fbgemm", "headway"
#: Makes ids out of rows of a static table: odd, so that no two are the same.
_SCATTER = 0x1E3779B97F4A7C15

Step = Callable[[torch.Tensor], torch.Tensor]


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = make_parser("embedding_layer", DESCRIPTION, ranks=(1,), rounds=20)
    for name, default, text in (
        ("--tables", 10, "that merge into one"),
        ("--rows", 100_000, "of a table"),
        ("--dim", 128, "values of a vector"),
        ("--batch", 512, "lists of a feature"),
        ("--length", 20, "ids of a list"),
        ("--threads", 1, "of each system"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.05, help="of ids' popularity (default: %(default)s)")
    return measure_and_report(
        "embedding_layer", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Pooled and sequence output, each system.

    Raises:
        BenchmarkError: the two do not agree, or FBGEMM is not installed.
    """
    torch.set_num_threads(options.threads)
    points = []
    for pooling in ("sum", None):
        steps = {_HEADWAY: _make_headway(options, pooling), _FBGEMM: _make_fbgemm(options, pooling)}
        _check(options, steps)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        random = np.random.default_rng(1)
        for turn in range(options.rounds):
            rows_K = _draw(options, random)
            for name in steps if turn % 2 == 0 else reversed(steps):
                started = time.perf_counter()
                steps[name](rows_K)
                seconds[name].append(time.perf_counter() - started)
        points += _points(options, pooling, seconds)
    return points


def _draw(options: argparse.Namespace, random: np.random.Generator) -> torch.Tensor:
    """(tables, batch * length) int64: rows that are looked up."""
    size = options.tables * options.batch * options.length
    rows = draw_zipf(random, num_values=options.rows, exponent=options.exponent, size=size)
    return torch.from_numpy(rows).view(options.tables, -1)


def _make_headway(options: argparse.Namespace, pooling: str | None) -> Step:
    names = [f"t{number}" for number in range(options.tables)]
    collection = HashTableCollection(
        tables=[
            TableConfig(
                name, dim=options.dim, optimizer=RowWiseAdagrad(lr=_LR, eps=_EPS), initializer=Uniform(-0.05, 0.05)
            )
            for name in names
        ],
        features=[FeatureConfig(name, table=name, pooling=pooling) for name in names],
        num_threads=options.threads,
    )
    lengths = torch.full((options.batch,), options.length)

    def step(rows_TK: torch.Tensor) -> torch.Tensor:
        ids_TK = rows_TK * _SCATTER
        outputs = collection({name: (ids, lengths) for name, ids in zip(names, ids_TK, strict=True)})
        torch.autograd.backward([outputs[name].sum() for name in names])
        collection.optimizer.step()
        return torch.stack([outputs[name].detach() for name in names])

    # All rows are there, as those of the static tables are.
    with torch.no_grad():
        for first in range(0, options.rows, 1 << 14):
            rows = torch.arange(first, min(first + (1 << 14), options.rows)) * _SCATTER
            collection({name: (rows, torch.tensor([len(rows)])) for name in names})
    return step


def _make_fbgemm(options: argparse.Namespace, pooling: str | None) -> Step:
    logging.getLogger().setLevel(logging.ERROR)  # It warns of a table of versions without an entry.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from fbgemm_gpu.split_embedding_configs import EmbOptimType
            from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
            from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
                ComputeDevice,
                SplitTableBatchedEmbeddingBagsCodegen,
            )
    except ImportError as error:
        raise BenchmarkError(f"FBGEMM is not installed: {error}") from error
    # Its kernel for the CPU has no sequence output: bags of one id each give it.
    width = options.length if pooling else 1
    layer = SplitTableBatchedEmbeddingBagsCodegen(
        [(options.rows, options.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * options.tables,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=_LR,
        eps=_EPS,
        pooling_mode=PoolingMode.SUM,
    )
    _start_alike(options, layer.split_embedding_weights())
    offsets = torch.arange(0, options.tables * options.batch * options.length + 1, width)

    def step(rows_TK: torch.Tensor) -> torch.Tensor:
        outputs = layer(rows_TK.reshape(-1), offsets)
        outputs.sum().backward()
        return outputs.detach().view(-1, options.tables, options.dim).transpose(0, 1)

    return step


def _start_alike(options: argparse.Namespace, weights_T: Sequence[torch.Tensor]) -> None:
    """Gives static tables the vectors that dynamic ones begin with."""
    names = [f"t{number}" for number in range(options.tables)]
    fresh = HashTableCollection(
        tables=[
            TableConfig(name, dim=options.dim, optimizer=RowWiseAdagrad(lr=_LR), initializer=Uniform(-0.05, 0.05))
            for name in names
        ],
        features=[FeatureConfig(name, table=name, pooling=None) for name in names],
    ).eval()
    ids = torch.arange(options.rows) * _SCATTER
    with torch.no_grad():
        vectors = fresh({name: (ids, torch.tensor([len(ids)])) for name in names})
        for name, weights in zip(names, weights_T, strict=True):
            weights.copy_(vectors[name])


def _check(options: argparse.Namespace, steps: dict[str, Step]) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        rows = _draw(options, random)
        ours, theirs = steps[_HEADWAY](rows), steps[_FBGEMM](rows)
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise BenchmarkError(f"the outputs differ by {(ours - theirs).abs().max():.3g}")


def _points(options: argparse.Namespace, pooling: str | None, seconds: dict[str, list[float]]) -> list[Point]:
    ratio = median_interval([b / a for a, b in zip(seconds[_HEADWAY], seconds[_FBGEMM], strict=True)])
    params = {
        name: getattr(options, name) for name in ("tables", "rows", "dim", "batch", "length", "exponent", "threads")
    }
    points = []
    for name, values in seconds.items():
        p5_s, p95_s = np.quantile(values, (0.05, 0.95)).tolist()
        median_s = statistics.median(values)
        points.append(
            Point(
                name="embedding_layer", params={**params, "pooling": pooling or "none"}, system=name,
                median_s=median_s, p5_s=p5_s, p95_s=p95_s, samples=len(values),
                rate=options.tables * options.batch * options.length / median_s, unit="ids/s",
                ratio=ratio.median if name == _HEADWAY else None,
                extra={"ratio_low": ratio.low, "ratio_high": ratio.high} if name == _HEADWAY else {},
            )
        )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """The table: one row for each kind of output."""
    others = {point.key: point for point in points if point.system == _FBGEMM}
    rows = [
        (
            point.params["pooling"],
            format_time(point.median_s),
            format_time(others[point.key].median_s),
            format_ratio(point.ratio, point.extra["ratio_low"], point.extra["ratio_high"]),
        )
        for point in points
        if point.system == _HEADWAY
    ]
    return format_table(("pooling", "headway", "fbgemm (static)", "faster (95%)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [
        Panel(title="a layer's step", points=points, x=lambda point: point.params["threads"], x_label="threads",
              label=lambda point: f"{point.system}, {point.params['pooling']}", log_x=False)
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
