# SPDX-License-Identifier: Apache-2.0
"""HSTU attention, forward and backward: Headway's kernels, plain PyTorch, and on a GPU Meta's Triton kernels.

Operations are counted as in published figures: 4 H D sum(n^2) / 2 for the forward pass over causal sequences of n
tokens, and 2.5 times as many for the backward pass. Outputs and gradients of all systems must agree before anything is
timed. On a GPU times are device times: the L2 cache is overwritten before each call, and the GPU is kept busy until
both passes are enqueued. Each time stands beside two lower limits: a copy of as many bytes as the pass must move, and
an empty kernel plus the operations of the pass at the rate of long sequences.

Triton's kernels run in four forms: with and without tensor descriptors (``enable_tma``), and with and without sorting
the sequences by length. Each form is tuned separately at each length. Ratios compare with the fastest form of a pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from headway import reference
from headway.ops import hstu_attention
from torch import Tensor

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.gpus import keep_busy
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.plots import Panel, split_panels
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.triton_kernels import import_attention_kernels
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "HSTU attention over jagged sequences, forward and backward, against plain PyTorch or Triton"

HEADWAY, EAGER, TRITON = "headway", "eager", "triton"
#: Forms of Triton's kernels: suffix of the system's name, and options.
_TRITON_FORMS = {
    "": {},
    "_tma": {"enable_tma": True},
    "_sorted": {"sort_by_length": True},
    "_tma_sorted": {"enable_tma": True, "sort_by_length": True},
}
LONG_TAIL = "long_tail"
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
_BACKWARD_SHARE = 2.5  #: Operations of a backward pass over those of the forward pass.
_BUSY_MS = 2  #: Milliseconds, roughly, for which the GPU is kept busy while the host enqueues.
_LIMIT_ROUNDS = 15
_CACHE_BYTES = 256 << 20  #: Bytes written to flush the L2 cache; more than the L2 cache of any GPU.
_LEAST = "least_s_by_"  #: Prefix of a point's extra fields that hold the lower limits of its pass.
_LONG_BATCH, _LONG_LENGTH = 32, "4096"  #: A size at which operations alone decide the time.
#: Tensors read or written at least: Q, K, V, output; output's gradient, Q, K, V and their gradients.
_TENSORS_MOVED = {"forward": 4, "backward": 7}

#: Called with q, k, v, offsets, ``max_length``, ``alpha`` and the options of the bias.
Attention = Callable[..., Tensor]


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("hstu_attention", DESCRIPTION, ranks=(1,), rounds=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=list(_TYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument(
        "--lengths", nargs="+", default=["256", LONG_TAIL], metavar="N",
        help=f"tokens of each sequence, or {LONG_TAIL} (lognormal, clipped at --longest; default: 256 {LONG_TAIL})",
    )  # fmt: skip
    for name, default, text in (
        ("--batch", 8, "sequences"),
        ("--longest", 1024, "tokens of a long tail"),
        ("--heads", 4, "heads"),
        ("--dim", 64, "columns of queries, keys and values"),
        ("--threads", 2, "on the CPU"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--bias", choices=("none", "position", "time"), default="none", help="(default: %(default)s)")
    parser.add_argument("--forward-only", action="store_true", help="no backward pass")
    parser.add_argument(
        "--triton", type=Path, metavar="DIR", help="checkout of generative-recommenders, to compare with on a GPU"
    )
    return measure_and_report(
        "hstu_attention", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


@dataclass(frozen=True)
class Work:
    """A batch, the same for all systems.

    ``heads_QKV`` holds Q, K and V: (tokens, heads, dim) each, as ``grad_out``. ``offsets`` (sequences + 1) holds
    the first token of each sequence, and the end. ``bias`` holds the options of the attention's bias.
    """

    lengths: tuple[int, ...]
    heads_QKV: list[Tensor]
    grad_out: Tensor
    offsets: Tensor
    bias: dict[str, Tensor]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def operations(self, part: str) -> float:
        """Floating-point operations of a pass over causal sequences."""
        num_heads, dim = self.heads_QKV[0].shape[1:]
        forward = 2.0 * num_heads * dim * sum(length**2 for length in self.lengths)
        return forward * (_BACKWARD_SHARE if part == "backward" else 1)


@dataclass(frozen=True)
class Limits:
    """Lower limits of a GPU's times, measured in this run."""

    launch_s: float  #: Seconds of an empty kernel.
    rates: dict[str, float]  #: FLOP/s of the passes over long sequences

    def least_seconds(self, work: Work, part: str) -> dict[str, float]:
        """Returns the seconds that a pass takes at least, one per limit, as extra fields of a point."""
        num_bytes = _TENSORS_MOVED[part] * work.grad_out.nbytes
        source, target = torch.empty((2, num_bytes // 2), dtype=torch.uint8, device=work.grad_out.device)
        return {
            f"{_LEAST}bytes": _time_on_gpu(lambda: target.copy_(source)),
            f"{_LEAST}operations": self.launch_s + work.operations(part) / self.rates[part],
        }


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all lengths with each system.

    Raises:
        BenchmarkError: a device or a system is missing, or systems disagree.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    if options.triton is not None and (options.device == "cpu" or options.bias != "none"):
        raise BenchmarkError("--triton is for --device cuda and --bias none: its kernels have no more")
    torch.set_num_threads(options.threads)
    limits = _measure_limits(options) if options.device == "cuda" else None
    points = []
    for length in options.lengths:
        work = _make_work(options, length, options.batch)
        systems: dict[str, Attention] = {HEADWAY: hstu_attention, EAGER: reference.hstu_attention}
        if options.triton is not None:
            systems |= _import_triton(options.triton)
        _check(work, systems)
        if TRITON in systems:
            del systems[EAGER]  # It runs minutes of small kernels on a GPU, and nobody would use it there.
        points += _measure_batch(options, length, work, systems, limits)
    return points


def _measure_limits(options: argparse.Namespace) -> Limits:
    work = _make_work(options, _LONG_LENGTH, _LONG_BATCH)
    calls = [_time_call(options, work, hstu_attention) for _ in range(1 + options.rounds)][1:]
    medians_s = [statistics.median(each) for each in zip(*calls, strict=True)]
    rates = {part: work.operations(part) / seconds for part, seconds in zip(_parts(options), medians_s, strict=False)}
    return Limits(_time_on_gpu(torch.zeros(1, device=options.device).zero_), rates)


def _make_work(options: argparse.Namespace, length: str, batch: int) -> Work:
    random = np.random.default_rng(1)
    if length == LONG_TAIL:
        drawn = random.lognormal(np.log(options.longest) - 2.06, 1.0, batch)  # The mean is near a fifth of the longest.
        lengths = tuple(int(each) for each in np.clip(drawn, 1, options.longest))
    elif length.isdecimal() and int(length) > 0:
        lengths = (int(length),) * batch
    else:
        raise BenchmarkError(f"--lengths takes numbers from 1 and {LONG_TAIL}, not {length}")
    torch.manual_seed(0)
    shape, dtype = (sum(lengths), options.heads, options.dim), _TYPES[options.dtype]
    *heads, grad_out = (torch.randn(shape, device=options.device).to(dtype) for _ in range(4))
    offsets = torch.tensor([0, *lengths], device=options.device).cumsum(0)
    bias = _make_bias(options.bias, max(lengths), sum(lengths), options.device)
    return Work(lengths, [each.requires_grad_() for each in heads], grad_out, offsets, bias)


def _make_bias(kind: str, longest: int, tokens: int, device: str) -> dict[str, Tensor]:
    if kind == "none":
        return {}
    if kind == "position":
        return {"position_weights": (0.1 * torch.randn(2 * longest - 1, device=device)).requires_grad_()}
    times = torch.randint(1, 100_000, (tokens,), device=device).cumsum(0)  # Seconds between tokens: up to about a day.
    return {
        "time_weights": (0.1 * torch.randn(129, device=device)).requires_grad_(),
        "time_bounds": torch.arange(1, 129, device=device).mul(0.301).exp(),
        "query_times": times,
        "key_times": times,
    }


def _import_triton(folder: Path) -> dict[str, Attention]:
    """Imports Triton's kernels; returns every form of them by the name of its system."""
    triton_hstu_mha, set_static_max_seq_lens = import_attention_kernels(folder)

    def make_form(number: int, options: dict[str, bool]) -> Attention:
        def attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, *, max_length: int, alpha: float) -> Tensor:
            # The kernels cache their tuning by this length alone, so each form gets a length of its own.
            set_static_max_seq_lens([max_length * len(_TRITON_FORMS) + number])
            return triton_hstu_mha(N=max_length, alpha=alpha, q=q, k=k, v=v, seq_offsets=offsets, **options)

        return attention

    return {
        TRITON + suffix: make_form(number, options) for number, (suffix, options) in enumerate(_TRITON_FORMS.items())
    }


def _forward(work: Work, attention: Attention) -> Tensor:
    alpha = work.heads_QKV[0].shape[2] ** -0.5
    return attention(*work.heads_QKV, work.offsets, max_length=work.longest, alpha=alpha, **work.bias)


def _backward(work: Work, out: Tensor) -> tuple[Tensor, ...]:
    learned = [each for each in work.bias.values() if each.requires_grad]
    return torch.autograd.grad(out, [*work.heads_QKV, *learned], work.grad_out)


def _check(work: Work, systems: dict[str, Attention]) -> None:
    results = {}
    for name, attention in systems.items():
        out = _forward(work, attention)
        results[name] = [out.detach(), *_backward(work, out)]
    for name, values in results.items():
        for ours, theirs in zip(values, results[EAGER], strict=True):
            error = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
            if not error <= _TOLERANCES[work.grad_out.dtype]:
                raise BenchmarkError(f"{name} and {EAGER} differ by {error:.2g} of the norm")


def _measure_batch(
    options: argparse.Namespace, length: str, work: Work, systems: dict[str, Attention], limits: Limits | None
) -> list[Point]:
    seconds: dict[str, dict[str, list[float]]] = {"forward": {}, "backward": {}}
    for turn in range(options.rounds):
        for name in systems if turn % 2 == 0 else reversed(systems):
            forward_s, backward_s = _time_call(options, work, systems[name])
            seconds["forward"].setdefault(name, []).append(forward_s)
            seconds["backward"].setdefault(name, []).append(backward_s)
    params = {name: getattr(options, name) for name in ("device", "dtype", "batch", "heads", "dim", "bias", "threads")}
    params |= {"lengths": length, "tokens": sum(work.lengths), "longest": work.longest}
    if options.device == "cuda":
        params |= {"device": torch.cuda.get_device_name()}
    return [point for part in _parts(options) for point in _points_of(params, part, work, seconds[part], limits)]


def _parts(options: argparse.Namespace) -> list[str]:
    return ["forward"] if options.forward_only else ["forward", "backward"]


def _time_call(options: argparse.Namespace, work: Work, attention: Attention) -> tuple[float, float]:
    clock = _read_cuda if options.device == "cuda" else time.perf_counter
    if options.device == "cuda":
        torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda").zero_()
        keep_busy(_BUSY_MS)
    marks: list[Any] = [clock()]
    out = _forward(work, attention)
    marks.append(clock())
    if not options.forward_only:
        _backward(work, out)
    marks.append(clock())
    if options.device == "cuda":
        torch.cuda.synchronize()
        return marks[0].elapsed_time(marks[1]) / 1e3, marks[1].elapsed_time(marks[2]) / 1e3
    return marks[1] - marks[0], marks[2] - marks[1]


def _time_on_gpu(enqueue: Callable[[], object]) -> float:
    """Returns the median of the device's seconds."""
    seconds = []
    for _ in range(_LIMIT_ROUNDS):
        keep_busy(_BUSY_MS)
        begin = _read_cuda()
        enqueue()
        end = _read_cuda()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def _read_cuda() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _points_of(
    params: dict[str, Any], part: str, work: Work, seconds: dict[str, list[float]], limits: Limits | None
) -> list[Point]:
    peers = [values for name, values in seconds.items() if name != HEADWAY]
    reference_s = min(peers, key=statistics.median)
    least_s = limits.least_seconds(work, part) if limits else {}
    points = []
    for system, values in seconds.items():
        ratio, extra = None, {}
        if values is not reference_s:
            interval = median_interval([b / a for a, b in zip(values, reference_s, strict=True)])
            ratio, extra = interval.median, {"ratio_low": interval.low, "ratio_high": interval.high, **least_s}
        p5_s, p95_s = np.quantile(values, (0.05, 0.95)).tolist()
        median_s = statistics.median(values)
        points.append(
            Point(
                name="hstu_attention", params={**params, "part": part}, system=system, median_s=median_s, p5_s=p5_s,
                p95_s=p95_s, samples=len(values), rate=work.operations(part) / median_s, unit="FLOP/s", ratio=ratio,
                extra=extra,
            )
        )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each point of Headway."""
    others: dict[Any, Point] = {}  # The fastest system besides Headway, by parameters.
    for point in points:
        if point.system != HEADWAY and (point.key not in others or point.median_s < others[point.key].median_s):
            others[point.key] = point
    rows = []
    for point in points:
        if point.system == HEADWAY:
            other = others[point.key]
            assert point.rate is not None, "a measured point has a rate"
            rows.append(
                (
                    str(point.params["lengths"]),
                    point.params["part"],
                    format_time(point.median_s),
                    f"{point.rate / 1e12:.3g}",
                    _format_least(point),
                    f"{other.system} {format_time(other.median_s)}",
                    format_ratio(point.ratio, point.extra["ratio_low"], point.extra["ratio_high"]),
                )
            )
    return format_table(("lengths", "part", "headway", "TFLOP/s", "at least", "beside", "faster (95%)"), rows)


def _format_least(point: Point) -> str:
    """Formats the limit that binds a pass and its seconds; "-" on a CPU."""
    limits = [(value, name.removeprefix(_LEAST)) for name, value in point.extra.items() if name.startswith(_LEAST)]
    if not limits:
        return "-"
    least_s, binding = max(limits)
    return f"{format_time(least_s)} ({binding})"


def _panels(points: Sequence[Point]) -> list[Panel]:
    return split_panels(points, "part", title="HSTU attention, {part}", x="tokens", x_label="tokens of a batch")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
