# SPDX-License-Identifier: Apache-2.0
"""Forward, backward and update of an embedding layer on a GPU: dynamic tables against FBGEMM's static tables.

Both systems look up the same ids. FBGEMM's tables have one row per id from the start. Dynamic tables are hash tables
that insert an id at its first lookup. They insert all ids before anything is timed. Both start with the same embeddings
and must give the same outputs in each of three steps. Times are device times: the GPU is kept busy until the host has
enqueued the step. The time that the host needs to enqueue is reported beside them.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from headway.embedding import Adam, HashTableCollection, Optimizer, RowWiseAdagrad

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.embedding_layers import (
    FBGEMM,
    HEADWAY,
    ID_MULTIPLIER,
    draw_rows,
    find_fbgemm,
    format_layers,
    make_collection,
    make_points,
    table_names,
)
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.gpus import keep_busy
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report

DESCRIPTION = "an embedding layer on a GPU, forward, backward and update, against FBGEMM's static tables"

_EPS = 1e-8
_OPTIMIZERS: dict[str, Optimizer] = {
    "row_wise_adagrad": RowWiseAdagrad(lr=0.05, eps=_EPS),
    "adam": Adam(lr=1e-3, eps=_EPS),
}
_POOLINGS = {"sum": "sum", "none": None}
_ROWS_AT_ONCE = 1 << 17  #: Rows of each table inserted per call while the tables are filled.
_BUSY_MS = 10  #: Milliseconds, roughly, for which the GPU is kept busy while the host enqueues a step.
_PARAMS = ("tables", "rows", "dim", "batch", "length", "exponent")


@dataclass(frozen=True)
class Layer:
    """One system's embedding layer.

    Attributes:
        forward: maps the index of a batch to its outputs.
        learn: takes the outputs of a batch, runs the backward pass and updates the tables.
        vectors: brings the outputs into the form that all systems share: (tables, outputs, dim).
    """

    forward: Callable[[int], list[torch.Tensor]]
    learn: Callable[[list[torch.Tensor]], None]
    vectors: Callable[[list[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Work:
    """Input of all systems.

    Suffixes: N batches, T tables, K ids of a batch and table, B outputs of a table, D columns.
    """

    options: argparse.Namespace
    optimizer: str
    pooling: str
    rows_NTK: list[torch.Tensor]  #: One (T, K) tensor of rows per batch.
    gradients_TBD: torch.Tensor  #: Gradients of the outputs.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("cuda_embedding_layer", DESCRIPTION, ranks=(1,), against="fbgemm", rounds=20)
    for name, default, text in (
        ("--tables", 10, "that merge into one"),
        ("--rows", 4_000_000, "of a table"),
        ("--dim", 128, "values of a vector"),
        ("--batch", 5243, "lists of a feature"),
        ("--length", 20, "ids of a list"),
        ("--batches", 8, "that take turns"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--exponent", type=float, default=1.05, help="of ids' popularity (default: %(default)s)")
    for name, choices in (("--optimizers", _OPTIMIZERS), ("--poolings", _POOLINGS)):
        parser.add_argument(name, nargs="+", choices=list(choices), default=list(choices), help="(default: all)")
    return measure_and_report(
        "cuda_embedding_layer", parser, parser.parse_args(argv), measure=measure, format_points=format_points,
        panels=_panels,
    )  # fmt: skip


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures every optimizer and kind of output with each system.

    Raises:
        BenchmarkError: there is no GPU, the two systems disagree, or FBGEMM was asked for and is not installed.
    """
    if not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    random = np.random.default_rng(1)
    rows_NTK = [draw_rows(options, random).cuda() for _ in range(options.batches)]
    points = []
    for optimizer, pooling in itertools.product(options.optimizers, options.poolings):
        num_outputs = options.batch * (options.length if _POOLINGS[pooling] is None else 1)
        torch.manual_seed(0)
        gradients_TBD = torch.randn(options.tables, num_outputs, options.dim, device="cuda")
        points += _measure_layers(Work(options, optimizer, pooling, rows_NTK, gradients_TBD))
        gc.collect()
        torch.cuda.empty_cache()  # Some of the next layers allocate outside of torch's cache.
    return points


def _measure_layers(work: Work) -> list[Point]:
    collection = _fill(work)
    layers = {HEADWAY: _make_headway(work, collection)}
    fbgemm = find_fbgemm(work.options)
    if fbgemm is not None:
        layers[FBGEMM] = _make_fbgemm(work, collection, fbgemm)
    _check(work, layers)
    forward: dict[str, list[float]] = {name: [] for name in layers}
    step: dict[str, list[float]] = {name: [] for name in layers}
    host: dict[str, list[float]] = {name: [] for name in layers}
    num_batches = work.options.batches
    for turn in range(num_batches + work.options.rounds):
        for name in layers if turn % 2 == 0 else reversed(layers):
            seconds = _time_step(layers[name], turn % num_batches)
            if turn >= num_batches:  # Earlier turns are warm-up.
                for values, each in zip((forward[name], step[name], host[name]), seconds, strict=True):
                    values.append(each)
    params = {name: getattr(work.options, name) for name in _PARAMS}
    params |= {"optimizer": work.optimizer, "pooling": work.pooling, "device": torch.cuda.get_device_name()}
    host_s = {name: statistics.median(values) for name, values in host.items()}
    return [
        *make_points("cuda_embedding_layer", {**params, "part": "step"}, step, host_s=host_s),
        *make_points("cuda_embedding_layer", {**params, "part": "forward"}, forward),
    ]


def _time_step(layer: Layer, batch: int) -> tuple[float, float, float]:
    """Returns seconds of the forward pass and of the step on the device, and of the host to enqueue the step."""
    torch.cuda.synchronize()
    keep_busy(_BUSY_MS)
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    started = time.perf_counter()
    begin.record()
    outputs = layer.forward(batch)
    middle.record()
    layer.learn(outputs)
    end.record()
    host_s = time.perf_counter() - started
    torch.cuda.synchronize()
    return begin.elapsed_time(middle) / 1e3, begin.elapsed_time(end) / 1e3, host_s


def _fill(work: Work) -> HashTableCollection:
    """Makes dynamic tables that already hold every id, as static tables do."""
    collection = make_collection(work.options, _OPTIMIZERS[work.optimizer], _POOLINGS[work.pooling], device="cuda")
    for begin in range(0, work.options.rows, _ROWS_AT_ONCE):
        _vectors_of(work, collection, begin)
    return collection


def _vectors_of(work: Work, collection: HashTableCollection, begin: int) -> list[torch.Tensor]:
    """Returns the embeddings of up to _ROWS_AT_ONCE rows from ``begin`` on, one tensor per table."""
    rows = torch.arange(begin, min(begin + _ROWS_AT_ONCE, work.options.rows), device="cuda")
    # ID_MULTIPLIER is an odd factor that maps rows to distinct 64-bit ids. Each list has one id.
    one_each = (rows * ID_MULTIPLIER, torch.ones_like(rows))
    with torch.no_grad():
        return list(collection(dict.fromkeys(table_names(work.options), one_each)).values())


def _make_headway(work: Work, collection: HashTableCollection) -> Layer:
    names = table_names(work.options)
    lengths = torch.full((work.options.batch,), work.options.length, device="cuda")
    batches = [
        {name: (ids, lengths) for name, ids in zip(names, rows_TK * ID_MULTIPLIER, strict=True)}
        for rows_TK in work.rows_NTK
    ]
    gradients = list(work.gradients_TBD)

    def learn(outputs: list[torch.Tensor]) -> None:
        torch.autograd.backward(outputs, gradients)
        collection.optimizer.step()

    return Layer(
        forward=lambda number: list(collection(batches[number]).values()),
        learn=learn,
        vectors=lambda outputs: torch.stack([output.detach() for output in outputs]),
    )


def _make_fbgemm(work: Work, collection: HashTableCollection, fbgemm: Any) -> Layer:
    options = work.options
    is_pooled = _POOLINGS[work.pooling] is not None
    kinds = {"row_wise_adagrad": fbgemm.EmbOptimType.EXACT_ROWWISE_ADAGRAD, "adam": fbgemm.EmbOptimType.ADAM}
    layer = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(options.rows, options.dim, fbgemm.EmbeddingLocation.DEVICE, fbgemm.ComputeDevice.CUDA)] * options.tables,
        optimizer=kinds[work.optimizer],
        learning_rate=_OPTIMIZERS[work.optimizer].lr,
        eps=_EPS,
        pooling_mode=fbgemm.PoolingMode.SUM if is_pooled else fbgemm.PoolingMode.NONE,
        bounds_check_mode=fbgemm.BoundsCheckMode.NONE,
        device=torch.cuda.current_device(),
    )
    collection.eval()
    for begin in range(0, options.rows, _ROWS_AT_ONCE):
        vectors_T = _vectors_of(work, collection, begin)
        with torch.no_grad():
            for weights, vectors in zip(layer.split_embedding_weights(), vectors_T, strict=True):
                weights[begin : begin + len(vectors)].copy_(vectors)
    collection.train()
    indices = [rows_TK.reshape(-1) for rows_TK in work.rows_NTK]
    offsets = torch.arange(0, options.tables * options.batch * options.length + 1, options.length, device="cuda")
    # FBGEMM's pooled output keeps the tables of one sample together. Its sequence output keeps a table together.
    gradients = work.gradients_TBD.transpose(0, 1).flatten(1) if is_pooled else work.gradients_TBD.flatten(0, 1)

    def vectors_of(outputs: list[torch.Tensor]) -> torch.Tensor:
        found = outputs[0].detach()
        if is_pooled:
            return found.view(options.batch, options.tables, options.dim).transpose(0, 1)
        return found.view(options.tables, -1, options.dim)

    return Layer(
        forward=lambda number: [layer(indices[number], offsets)],
        learn=lambda outputs: torch.autograd.backward(outputs, [gradients]),
        vectors=vectors_of,
    )


def _check(work: Work, layers: dict[str, Layer]) -> None:
    for number in range(3):
        found = {}
        for name, layer in layers.items():
            outputs = layer.forward(number % work.options.batches)
            found[name] = layer.vectors(outputs)
            layer.learn(outputs)
        ours, theirs = found[HEADWAY], found.get(FBGEMM, found[HEADWAY])
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
            raise BenchmarkError(f"{work.optimizer}: the outputs differ by {(ours - theirs).abs().max():.3g}")


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each optimizer, kind of output, and part of a step."""
    return format_layers(points, ("optimizer", "pooling", "part"))


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(
        points, "part", title="a layer's {part}", x="rows", x_label="rows of a table",
        label=lambda point: f"{point.system}, {point.params['optimizer']}, {point.params['pooling']}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
