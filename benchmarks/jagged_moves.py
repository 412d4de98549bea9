# SPDX-License-Identifier: Apache-2.0
"""Moves and sums of jagged rows: Headway's operators, plain PyTorch, and FBGEMM's operators where it has them.

Plain PyTorch dispatches with one ``narrow`` per rank and feature and one ``cat``; the host knows all offsets
beforehand. Headway's time includes moving the lengths and computing their offsets. All systems must agree before
anything is timed. On a GPU a sample is the time of several calls in a row, until the device is done. The operation
"copy" copies the ids and vectors of an exchange in one piece and in order: the memory's limit.

An exchange moves rows before and after an all-to-all. "dispatch" sorts them from feature by feature to rank by rank,
and "combine" is its inverse. Suffixes: F features, R ranks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from headway import ops
from torch import Tensor

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.embedding_layers import find_fbgemm
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Params, Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "moves and sums of jagged rows, against plain PyTorch and FBGEMM's operators"

HEADWAY, EAGER, FBGEMM = "headway", "eager", "fbgemm"
_PARAMS = ("features", "samples", "length", "dim", "threads", "device")
_MOST_CALLS = 20  #: Upper limit for the calls of one sample on a GPU.
#: Values of ``--operations``. ``samples`` stands for to_padded, add_dense and sum.
_EXCHANGES, _PERMUTATION, _SAMPLES, _UNIQUE = "exchanges", "permutation", "samples", "unique"


@dataclass(frozen=True)
class Operation:
    """One operation: a function per system, and the bytes that it reads and writes at least."""

    name: str
    params: Params
    num_bytes: int
    systems: dict[str, Callable[[], Sequence[Tensor]]]


@dataclass(frozen=True)
class Work:
    """Features of samples with long-tailed lengths: ids, weights and vectors of N rows.

    ``lengths`` is (features, samples): rows of each. Rows are in the order of features, then samples.
    """

    lengths: Tensor
    ids: Tensor
    weights: Tensor
    vectors: Tensor
    num_samples: int

    @property
    def num_rows(self) -> int:
        return len(self.ids)

    def row_bytes(self, *names: str) -> int:
        tensors = [getattr(self, name) for name in names]
        return sum(each[:1].numel() * each.element_size() for each in tensors)


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("jagged_moves", DESCRIPTION, ranks=(32, 128, 512), against=FBGEMM, rounds=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    for name, default, text in (
        ("--features", 26, "of each sample"),
        ("--samples", 2048, "of a batch"),
        ("--length", 4, "rows of a sample on average; lognormal, at most 20 times as many"),
        ("--dim", 16, "float32 values of a vector"),
        ("--threads", 2, "on the CPU"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--operations", nargs="+", choices=(_EXCHANGES, _PERMUTATION, _SAMPLES, _UNIQUE),
        default=(_EXCHANGES, _PERMUTATION, _SAMPLES, _UNIQUE), help="what to measure (default: all)",
    )  # fmt: skip
    return measure_and_report(
        "jagged_moves", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures the chosen operations with each system.

    Raises:
        BenchmarkError: a device is missing, ``--against`` names FBGEMM and it is missing, or systems disagree.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    has_fbgemm = find_fbgemm(options) is not None
    torch.set_num_threads(options.threads)
    work = _make_work(options)
    params = {name: getattr(options, name) for name in _PARAMS} | {"rows": work.num_rows}
    if options.device == "cuda":
        params["device"] = torch.cuda.get_device_name()
    points = []
    for operation in _operations(work, options):
        if not has_fbgemm or not _runs_fbgemm(operation, options):
            operation.systems.pop(FBGEMM, None)
        _check(operation)
        points += _points_of(operation, params, _measure_operation(options, operation))
    return points


def _runs_fbgemm(operation: Operation, options: argparse.Namespace) -> bool:
    """Whether FBGEMM has the operation for the device. A CPU package has no kernels for CUDA.

    Raises:
        BenchmarkError: FBGEMM lacks the operation, and ``--against`` names FBGEMM.
    """
    run = operation.systems.get(FBGEMM)
    if run is None:
        return False
    try:
        run()
    # torch raises these for a missing kernel and for a missing operator.
    except (NotImplementedError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        if options.against is not None:
            raise BenchmarkError(f"{FBGEMM} has no {operation.name} for {options.device}: {reason}") from error
        print(f"{FBGEMM} is left out of {operation.name}: {reason}", file=sys.stderr, flush=True)
        return False
    return True


def _make_work(options: argparse.Namespace) -> Work:
    random = np.random.default_rng(1)
    drawn = random.lognormal(np.log(options.length) - 0.5, 1.0, (options.features, options.samples))
    lengths = torch.from_numpy(np.minimum(drawn.astype(np.int64), 20 * options.length)).to(options.device)
    num_rows = int(lengths.sum())
    torch.manual_seed(0)
    return Work(
        lengths=lengths,
        ids=torch.randint(0, max(num_rows // 4, 1), (num_rows,), device=options.device),
        weights=torch.randn(num_rows, device=options.device),
        vectors=torch.randn(num_rows, options.dim, device=options.device),
        num_samples=options.samples,
    )


def _operations(work: Work, options: argparse.Namespace) -> Iterator[Operation]:
    if _EXCHANGES in options.operations:
        for num_ranks in options.ranks:
            yield from _exchanges(work, num_ranks)
        yield _copy(work)
    if _PERMUTATION in options.operations:
        yield _permutation(work)
    if _SAMPLES in options.operations:
        yield from _sample_operations(work)
    if _UNIQUE in options.operations:
        yield _unique(work)


def _exchanges(work: Work, num_ranks: int) -> Iterator[Operation]:
    """Yields the moves of ids and vectors before and after an all-to-all. All ranks have equally many samples."""
    num_features = len(work.lengths)
    # Rank r gets the samples from bounds[r] to before bounds[r + 1].
    bounds = torch.linspace(0, work.num_samples, num_ranks + 1).long().to(work.ids.device)
    values = [work.ids, work.vectors]
    offsets = torch.cat([bounds.new_zeros(1), work.lengths.reshape(-1).cumsum(0)])
    begins_FR = offsets[torch.arange(num_features, device=bounds.device)[:, None] * work.num_samples + bounds].tolist()
    runs_RF = [
        [(row[rank], row[rank + 1] - row[rank]) for row in begins_FR] for rank in range(num_ranks)
    ]  # (begin, size) of each run among the rows in feature order.
    # ``by_rank``: the lengths in the order of the dispatched rows.
    dispatched, by_rank, _ = ops.ranged_dispatch(values, work.lengths, bounds)
    sizes_RF = [size for runs in runs_RF for _, size in runs]
    starts_RF = np.cumsum([0, *sizes_RF]).tolist()
    order_FR = [rank * num_features + feature for feature in range(num_features) for rank in range(num_ranks)]

    def dispatch_eagerly() -> list[Tensor]:
        return [torch.cat([each.narrow(0, *run) for runs in runs_RF for run in runs]) for each in values]

    def combine_eagerly() -> list[Tensor]:
        return [torch.cat([each.narrow(0, starts_RF[i], sizes_RF[i]) for i in order_FR]) for each in dispatched]

    num_bytes = 2 * work.num_rows * work.row_bytes("ids", "vectors")
    yield Operation(
        "dispatch", {"ranks": num_ranks}, num_bytes,
        {HEADWAY: lambda: ops.ranged_dispatch(values, work.lengths, bounds)[0], EAGER: dispatch_eagerly},
    )  # fmt: skip
    yield Operation(
        "combine", {"ranks": num_ranks}, num_bytes,
        {
            HEADWAY: lambda: ops.ranged_combine(dispatched, by_rank, bounds, num_features=num_features)[0],
            EAGER: combine_eagerly,
        },
    )  # fmt: skip


def _copy(work: Work) -> Operation:
    num_bytes = 2 * work.num_rows * work.row_bytes("ids", "vectors")
    return Operation("copy", {}, num_bytes, {EAGER: lambda: [work.ids.clone(), work.vectors.clone()]})


def _permutation(work: Work) -> Operation:
    """Permutes the features of ids and weights; FBGEMM has an operator for it."""
    order = torch.randperm(len(work.lengths)).to(work.ids.device)
    sizes, order_list = work.lengths.sum(1).tolist(), order.tolist()

    def permute_eagerly() -> list[Tensor]:
        outs = []
        for values in (work.ids, work.weights):
            parts = torch.split(values, sizes)
            outs.append(torch.cat([parts[feature] for feature in order_list]))
        return outs

    def permute_with_fbgemm() -> Sequence[Tensor]:
        permuted: Sequence[Tensor] = torch.ops.fbgemm.permute_2D_sparse_data(
            order.int(), work.lengths, work.ids, work.weights, work.num_rows
        )
        return permuted[1:]

    return Operation(
        "permute", {}, 2 * work.num_rows * work.row_bytes("ids", "weights"),
        {
            HEADWAY: lambda: ops.jagged_permute(
                [work.ids, work.weights], work.lengths, features=order, num_rows=work.num_rows
            )[0],
            EAGER: permute_eagerly,
            FBGEMM: permute_with_fbgemm,
        },
    )  # fmt: skip


def _sample_operations(work: Work) -> Iterator[Operation]:
    """Yields operations on the vectors of all features as if they belonged to one feature."""
    lengths = work.lengths.reshape(-1)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    longest, dim = int(lengths.max()), work.vectors.shape[1]
    dense = torch.randn(len(lengths), longest, dim, device=lengths.device)
    is_there = torch.arange(longest, device=lengths.device) < lengths[:, None]
    row_bytes = work.row_bytes("vectors")

    def pad_eagerly() -> list[Tensor]:
        padded = torch.zeros_like(dense)
        padded[is_there] = work.vectors
        return [padded]

    yield Operation(
        "to_padded", {"longest": longest}, (work.num_rows + dense[..., 0].numel()) * row_bytes,
        {
            HEADWAY: lambda: [ops.jagged_to_padded(work.vectors, offsets, max_length=longest)],
            EAGER: pad_eagerly,
            FBGEMM: lambda: [torch.ops.fbgemm.jagged_to_padded_dense(work.vectors, [offsets], [longest], 0.0)],
        },
    )  # fmt: skip
    yield Operation(
        "add_dense", {"longest": longest}, 3 * work.num_rows * row_bytes,
        {
            HEADWAY: lambda: [ops.jagged_add_dense(work.vectors, offsets, dense)],
            EAGER: lambda: [work.vectors + dense[is_there]],
            FBGEMM: lambda: torch.ops.fbgemm.jagged_dense_elementwise_add_jagged_output(
                work.vectors, [offsets], dense
            )[:1],
        },
    )  # fmt: skip
    yield Operation(
        "sum", {}, (work.num_rows + len(lengths)) * row_bytes,
        {
            HEADWAY: lambda: [ops.jagged_reduce(work.vectors, offsets)],
            EAGER: lambda: [torch.segment_reduce(work.vectors, "sum", offsets=offsets, initial=0)],
        },
    )  # fmt: skip


def _unique(work: Work) -> Operation:
    def unique_eagerly() -> list[Tensor]:
        values, inverse, counts = torch.unique(work.ids, return_inverse=True, return_counts=True)
        return [values[inverse], counts[inverse]]

    def unique() -> list[Tensor]:
        values, inverse, counts, _ = ops.unique_with_counts(work.ids)
        return [values[inverse], counts[inverse]]

    # Four int64 numbers per row: id, inverse index and two outputs.
    return Operation("unique", {}, 4 * work.num_rows * 8, {HEADWAY: unique, EAGER: unique_eagerly})


def _check(operation: Operation) -> None:
    outputs = {name: run() for name, run in operation.systems.items()}
    for name, values in outputs.items():
        for ours, theirs in zip(values, outputs[EAGER], strict=True):
            if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
                raise BenchmarkError(f"{operation.name}: {name} and {EAGER} differ")


def _measure_operation(options: argparse.Namespace, operation: Operation) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in operation.systems}
    calls = {name: _calls_of_sample(options, run) for name, run in operation.systems.items()}
    for turn in range(options.rounds):
        for name in seconds if turn % 2 == 0 else reversed(seconds):
            seconds[name].append(_time_calls(options, operation.systems[name], calls[name]))
    return seconds


def _calls_of_sample(options: argparse.Namespace, run: Callable[[], Sequence[Tensor]]) -> int:
    """Calls that take about 10 ms together, so that launch overhead does not decide the time of a fast operation."""
    once_s = _time_calls(options, run, 1)
    return 1 if options.device == "cpu" else max(1, min(_MOST_CALLS, int(0.01 / once_s)))


def _time_calls(options: argparse.Namespace, run: Callable[[], Sequence[Tensor]], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        run()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls


def _points_of(operation: Operation, params: Params, seconds: dict[str, list[float]]) -> list[Point]:
    points = []
    for system, values in seconds.items():
        ratio, extra = None, {}
        if system != EAGER:
            interval = median_interval([b / a for a, b in zip(values, seconds[EAGER], strict=True)])
            ratio, extra = interval.median, {"ratio_low": interval.low, "ratio_high": interval.high}
        p5_s, p95_s = np.quantile(values, (0.05, 0.95)).tolist()
        median_s = statistics.median(values)
        points.append(
            Point(
                name="jagged_moves",
                params={**params, "operation": operation.name, **operation.params, "bytes": operation.num_bytes},
                system=system, median_s=median_s, p5_s=p5_s, p95_s=p95_s, samples=len(values),
                rate=operation.num_bytes / median_s, unit="B/s", ratio=ratio, extra=extra,
            )
        )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each point."""
    rows = []
    for point in points:
        assert point.rate is not None, "a measured point has a rate"
        ratio = format_ratio(point.ratio, point.extra.get("ratio_low"), point.extra.get("ratio_high"))
        operation, num_ranks = point.params["operation"], point.params.get("ranks", "")
        rows.append(
            (
                operation, str(num_ranks), format_bytes(point.params["bytes"]), point.system,
                format_time(point.median_s), f"{point.rate / 1e9:.3g}", ratio,
            )
        )  # fmt: skip
    return format_table(("operation", "ranks", "moved", "system", "time", "GB/s", "faster than eager (95%)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    chosen = [point for point in points if point.params["operation"] in ("dispatch", "combine")]
    return split_panels(chosen, "operation", title="{operation}, {rows} rows", x="ranks")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
