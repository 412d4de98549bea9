# SPDX-License-Identifier: Apache-2.0
"""Forward, backward and update of an embedding layer on the CPU: dynamic tables against FBGEMM's static tables.

Both systems look up the same ids. Dynamic tables are hash tables that insert an id at its first lookup. Each table has
one row per id: FBGEMM's from the start, the dynamic ones before anything is timed. Both start with the same embeddings
and must give the same outputs in each of three steps.

Suffixes: T tables, K ids of a batch and table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from headway.embedding import RowWiseAdagrad, Sgd

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
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report

DESCRIPTION = "an embedding layer on the CPU, forward, backward and update, against FBGEMM's static tables"

_LR, _EPS = 0.05, 1e-8
_PARAMS = ("tables", "rows", "dim", "batch", "length", "exponent", "threads", "optimizer")
_OPTIMIZERS = {"row_wise_adagrad": RowWiseAdagrad(lr=_LR, eps=_EPS), "sgd": Sgd(lr=_LR)}
_OF_FBGEMM = {"row_wise_adagrad": "EXACT_ROWWISE_ADAGRAD", "sgd": "EXACT_SGD"}

#: Runs a step, and returns the output of each table. A joined copy of them would be part of the time.
Step = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("embedding_layer", DESCRIPTION, ranks=(1,), against=FBGEMM, rounds=20)
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
    parser.add_argument(
        "--optimizer", choices=_OPTIMIZERS, default="row_wise_adagrad", help="of both systems (default: %(default)s)"
    )
    return measure_and_report(
        "embedding_layer",
        parser,
        parser.parse_args(argv),
        measure=measure,
        format_points=_format_points,
        panels=_panels,
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures pooled and sequence output with each system.

    Raises:
        BenchmarkError: the two systems disagree, or ``--against`` names FBGEMM and it is not installed.
    """
    torch.set_num_threads(options.threads)
    fbgemm = find_fbgemm(options)
    points = []
    for pooling in ("sum", None):
        steps = {HEADWAY: _make_headway(options, pooling)}
        if fbgemm is not None:
            steps[FBGEMM] = _make_fbgemm(options, pooling, fbgemm)
            _check(options, steps)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        random = np.random.default_rng(1)
        for turn in range(options.rounds):
            rows_TK = draw_rows(options, random)
            for name in steps if turn % 2 == 0 else reversed(steps):
                started = time.perf_counter()
                steps[name](rows_TK)
                seconds[name].append(time.perf_counter() - started)
        params = {name: getattr(options, name) for name in _PARAMS}
        points += make_points("embedding_layer", {**params, "pooling": pooling or "none"}, seconds)
    return points


def _make_headway(options: argparse.Namespace, pooling: str | None) -> Step:
    names = table_names(options)
    collection = make_collection(options, _OPTIMIZERS[options.optimizer], pooling, num_threads=options.threads)
    lengths = torch.full((options.batch,), options.length)

    def step(rows_TK: torch.Tensor) -> Sequence[torch.Tensor]:
        ids_TK = rows_TK * ID_MULTIPLIER  # An odd factor, which maps rows to distinct 64-bit ids.
        outputs = collection({name: (ids, lengths) for name, ids in zip(names, ids_TK, strict=True)})
        torch.autograd.backward([outputs[name].sum() for name in names])
        collection.optimizer.step()
        return [outputs[name].detach() for name in names]

    # Inserts every id: static tables have all their rows from the start.
    with torch.no_grad():
        for first in range(0, options.rows, 1 << 14):
            rows = torch.arange(first, min(first + (1 << 14), options.rows)) * ID_MULTIPLIER
            collection({name: (rows, torch.tensor([len(rows)])) for name in names})
    return step


def _make_fbgemm(options: argparse.Namespace, pooling: str | None, fbgemm: Any) -> Step:
    # FBGEMM's CPU kernel has no sequence output, so each id becomes a bag of its own.
    width = options.length if pooling else 1
    layer = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(options.rows, options.dim, fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU)] * options.tables,
        optimizer=fbgemm.EmbOptimType[_OF_FBGEMM[options.optimizer]],
        learning_rate=_LR,
        eps=_EPS,
        pooling_mode=fbgemm.PoolingMode.SUM,
    )
    _start_alike(options, layer.split_embedding_weights())
    offsets = torch.arange(0, options.tables * options.batch * options.length + 1, width)

    def step(rows_TK: torch.Tensor) -> Sequence[torch.Tensor]:
        outputs = layer(rows_TK.reshape(-1), offsets)
        outputs.sum().backward()
        return outputs.detach().view(-1, options.tables, options.dim).transpose(0, 1).unbind()

    return step


def _start_alike(options: argparse.Namespace, weights_T: Sequence[torch.Tensor]) -> None:
    """Copies the initial embeddings of the dynamic tables into the static ones."""
    names = table_names(options)
    fresh = make_collection(options, Sgd(lr=_LR), None).eval()
    ids = torch.arange(options.rows) * ID_MULTIPLIER
    with torch.no_grad():
        vectors = fresh({name: (ids, torch.tensor([len(ids)])) for name in names})
        for name, weights in zip(names, weights_T, strict=True):
            weights.copy_(vectors[name])


def _check(options: argparse.Namespace, steps: dict[str, Step]) -> None:
    random = np.random.default_rng(0)
    for _ in range(3):
        rows = draw_rows(options, random)
        ours, theirs = (torch.stack(list(steps[name](rows))) for name in (HEADWAY, FBGEMM))
        if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            raise BenchmarkError(f"the outputs differ by {(ours - theirs).abs().max():.3g}")


def _format_points(points: Sequence[Point]) -> str:
    return format_layers(points, ("pooling",))


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [
        Panel(title="a layer's step", points=points, x=lambda point: point.params["threads"], x_label="threads",
              label=lambda point: f"{point.system}, {point.params['pooling']}", log_x=False)
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
