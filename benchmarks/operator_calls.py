# SPDX-License-Identifier: Apache-2.0
"""Host time of calls of operators on a few rows: what Python, the dispatcher and autograd take, and not the kernel.

Each operator is called without gradients, with them, and with a backward pass. ``silu`` of PyTorch is the least that a
call takes. ``table_lookup`` looks up 32 ids in each of three tables of a ``HashTableCollection``. Its backward pass
ends with the update of the rows. On a GPU the host does not wait for the device, and calls are so few that its queue
does not fill.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from headway import ops
from headway.embedding import LOCAL, FeatureConfig, HashTableCollection, Sgd, TableConfig
from torch import Tensor

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_table, format_time

DESCRIPTION = "host time of calls of operators with few rows, without and with gradients"

_LENGTH, _SAMPLES, _DIM = 2, 2, 32  #: Rows of a sample, samples, and columns of a row.
_TABLE_IDS, _TABLE_DIMS = 32, (16, 32, 64)
_PASSES = ("no_grad", "forward", "forward_backward")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("operator_calls", DESCRIPTION, ranks=(1,), rounds=11)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--calls", type=whole_number(1), default=200, metavar="N",
                        help="calls of a round (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(argv)
    return measure_and_report("operator_calls", parser, options, measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures one point for each operator and pass.

    Raises:
        BenchmarkError: the device is missing.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    points = []
    for name, operator in _operators(torch.device(options.device)).items():
        for each in _PASSES:
            run = partial(_run_pass, each, operator)
            _time_calls(run, options.calls)  # Warms up.
            times_s = sorted(_time_calls(run, options.calls) for _ in range(options.rounds))
            points.append(
                Point(
                    name="operator_calls",
                    params={"operator": name, "pass": each, "device": device},
                    system="torch" if name == "silu" else "headway",
                    median_s=statistics.median(times_s),
                    p5_s=times_s[0],
                    p95_s=times_s[-1],
                    samples=len(times_s),
                )
            )
    return points


@dataclass(frozen=True)
class _Operator:
    call: Callable[[], Sequence[Tensor]]
    inputs: Sequence[Tensor] = ()  #: Tensors whose gradients the backward pass computes.
    finish: Callable[[], object] | None = None  #: Called after the backward pass.


def _operators(device: torch.device) -> dict[str, _Operator]:
    rows = _LENGTH * _SAMPLES
    offsets = torch.arange(_SAMPLES + 1, device=device) * _LENGTH
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q, k, v = (torch.randn(rows, 1, _DIM, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    x, gate = (torch.randn(rows, _DIM, device=device, requires_grad=True) for _ in range(2))
    return {
        "silu": _Operator(lambda: [torch.nn.functional.silu(x)], [x]),
        "hstu_attention": _Operator(lambda: [ops.hstu_attention(q, k, v, offsets, max_length=_LENGTH)], [q, k, v]),
        "gated_norm": _Operator(lambda: [ops.gated_norm(x, gate)], [x, gate]),
        "silu_split": _Operator(lambda: [ops.silu_split(x, [_DIM])[0]], [x]),
        "jagged_reduce": _Operator(lambda: [ops.jagged_reduce(x, offsets)], [x]),
        "jagged_to_padded": _Operator(lambda: [ops.jagged_to_padded(x, offsets, max_length=_LENGTH)], [x]),
        "table_lookup": _table_lookup(device),
    }


def _table_lookup(device: torch.device) -> _Operator:
    tables = HashTableCollection(
        tables=[TableConfig(f"table{dim}", dim=dim, optimizer=Sgd(lr=0.1)) for dim in _TABLE_DIMS],
        features=[FeatureConfig(f"feature{dim}", table=f"table{dim}", pooling="sum") for dim in _TABLE_DIMS],
        process_group=LOCAL,  # One rank has all ids.
        device=device,
    )
    generator = torch.Generator().manual_seed(1)
    lengths = torch.full((_TABLE_IDS // 4,), 4, device=device)
    batch = {
        f"feature{dim}": (torch.randint(0, 100_000, (_TABLE_IDS,), generator=generator).to(device), lengths)
        for dim in _TABLE_DIMS
    }
    return _Operator(lambda: list(tables(batch).values()), finish=tables.optimizer.step)


def _run_pass(name: str, operator: _Operator) -> None:
    if name == "no_grad":
        with torch.no_grad():
            operator.call()
    elif name == "forward":
        operator.call()
    else:
        outputs = operator.call()
        if operator.inputs:
            torch.autograd.grad(outputs, operator.inputs, outputs)
        else:
            torch.autograd.backward(outputs, [each.detach() for each in outputs])
        if operator.finish is not None:
            operator.finish()


def _time_calls(run: Callable[[], None], count: int) -> float:
    """Returns the seconds of the host per call."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each operator."""
    medians = {(point.params["operator"], point.params["pass"]): point.median_s for point in points}
    names = dict.fromkeys(point.params["operator"] for point in points)
    rows = [(name, *(format_time(medians[name, each]) for each in _PASSES)) for name in names]
    return format_table(("operator", "no gradients", "forward", "forward and backward"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
