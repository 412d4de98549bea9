# SPDX-License-Identifier: Apache-2.0
"""One HSTU layer, forward and backward, against PyTorch's operations one by one.

Systems differ in the activations that they recompute instead of keeping them. ``--compile`` also compiles two of them.
All use Headway's attention. Layers must agree with PyTorch in output and gradients before anything is timed. On a GPU
times are device times: the GPU is kept busy until both passes are enqueued.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from headway.nn import HSTUConfig, HSTULayer, Sequences
from headway.nn.attention import BiasTables, LayerAttention
from headway.nn.config import Recompute
from torch import Tensor
from torch.nn import functional

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.gpus import keep_busy
from benchmarks.harness.pairing import median_interval
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.text_table import format_ratio, format_table, format_time

DESCRIPTION = "HSTU layer over jagged sequences, forward and backward, against PyTorch's operations one by one"

EAGER = "eager"  #: PyTorch's operations one by one. The other systems are named by the activations that they recompute.
_RECOMPUTE: tuple[Recompute, ...] = ("none", "norm_and_gate", "projection", "all")
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_BUSY_MS = 4  #: Milliseconds, roughly, for which the GPU is kept busy while the host enqueues.
#: The layer of the HSTU paper, and that of its authors' production code.
_DEFINITIONS = {"research": HSTUConfig.research, "production": HSTUConfig.production}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("hstu_layer", DESCRIPTION, ranks=(1,), rounds=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=list(_TYPES), default="float32", help="(default: %(default)s)")
    parser.add_argument(
        "--definition", choices=list(_DEFINITIONS), default="production", help="of the layer (default: %(default)s)"
    )
    parser.add_argument(
        "--compile", action="store_true", help="also with torch.compile: a minute or more before the first time"
    )
    for name, default, text in (
        ("--length", 256, "tokens of each sequence"),
        ("--batch", 8, "sequences"),
        ("--dim", 512, "columns of the layer"),
        ("--heads", 4, "heads, with dim / heads columns each"),
        ("--threads", 2, "on the CPU"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    return measure_and_report(
        "hstu_layer", parser, parser.parse_args(argv), measure=measure, format_points=format_points, panels=_panels
    )


@dataclass(frozen=True)
class Work:
    """A batch, the same for all layers. ``x`` and ``grad_out``: (tokens, dim)."""

    x: Tensor
    grad_out: Tensor
    sequences: Sequences


Layer = Callable[[Tensor, Sequences], Tensor]


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures each system, in turns.

    Raises:
        BenchmarkError: a device is missing, heads do not divide the columns, or systems disagree.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    if options.dim % options.heads:
        raise BenchmarkError(f"--dim {options.dim} is no multiple of --heads {options.heads}")
    torch.set_num_threads(options.threads)
    work = _make_work(options)
    layers = _make_layers(options)
    systems: dict[str, tuple[HSTULayer, Layer]] = {EAGER: (layers["none"], _eager(layers["none"]))}
    systems |= {name: (layer, layer) for name, layer in layers.items()}
    if options.compile:
        for name in (EAGER, "norm_and_gate"):
            layer, call = systems[name]
            systems[f"{name}, compiled"] = (layer, torch.compile(call, fullgraph=True))
    _check(work, systems)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    kept: dict[str, int] = {}
    for turn in range(options.rounds):
        for name in systems if turn % 2 == 0 else reversed(systems):
            elapsed_s, kept[name] = _time_step(work, *systems[name])
            seconds[name].append(elapsed_s)
    return _points(options, seconds, kept)


def _make_work(options: argparse.Namespace) -> Work:
    torch.manual_seed(0)
    num_tokens = options.batch * options.length
    x, grad_out = (
        torch.randn(num_tokens, options.dim, device=options.device, dtype=_TYPES[options.dtype]) for _ in range(2)
    )
    offsets = torch.arange(0, num_tokens + 1, options.length, device=options.device)
    times = torch.randint(1, 100_000, (num_tokens,), device=options.device).cumsum(0)
    sequences = Sequences(offsets=offsets, max_length=options.length, times=times, query_times=times)
    return Work(x.requires_grad_(), grad_out, sequences)


def _make_layers(options: argparse.Namespace) -> dict[str, HSTULayer]:
    """Makes one layer per setting of ``recompute``, all with the same weights."""
    head_dim = options.dim // options.heads
    config = _DEFINITIONS[options.definition](
        dim=options.dim, max_length=options.length, num_heads=options.heads, qk_dim=head_dim, v_dim=head_dim
    )
    layers: dict[str, HSTULayer] = {}
    for recompute in _RECOMPUTE:
        torch.manual_seed(1)
        layer = HSTULayer(replace(config, recompute=recompute))
        layers[recompute] = layer.to(device=options.device, dtype=_TYPES[options.dtype])
    return layers


def _eager(layer: HSTULayer) -> Layer:
    """Returns the same layer built from PyTorch's operations, for the two definitions that are measured."""
    config, width, eps = layer.config, layer.config.gate_width, layer.config.norm_eps

    def linear(x: Tensor, weight: Tensor, summand: Tensor | None) -> Tensor:
        return torch.mm(x, weight) if summand is None else torch.addmm(summand, x, weight)

    def call(x: Tensor, sequences: Sequences) -> Tensor:
        weights = layer.weights()
        normed = functional.layer_norm(x, (config.dim,), *weights.input_norm, eps)
        projected = linear(normed, weights.uvqk_weight, weights.uvqk_bias)
        # ``activated`` names the columns of the projection that pass through SiLU: all, or only u.
        if config.activated == "all":
            projected = functional.silu(projected)
        u, *parts = torch.split(projected, list(config.projection_widths), dim=1)
        if config.activated == "gate":
            u = functional.silu(u)
        v, q, k = (part.view(part.shape[0], config.num_heads, -1) for part in parts)
        position, time_weights = (
            None if each is None else each.float() for each in (weights.position_weights, weights.time_weights)
        )
        tables = BiasTables(position, time_weights, layer.bias.time_bounds)
        attention_out = LayerAttention(config=config, sequences=sequences).forward(q, k, v, tables).flatten(1)
        gated = u * functional.layer_norm(attention_out, (width,), *weights.output_norm, eps)
        if config.gate == "concat":
            gated = torch.cat([u, attention_out, gated], dim=1)
        return x + linear(gated, weights.output_weight, weights.output_bias)

    return call


def _step(work: Work, layer: HSTULayer, call: Layer) -> tuple[Tensor, ...]:
    out = call(work.x, work.sequences)
    return (out.detach(), *torch.autograd.grad(out, [work.x, *layer.parameters()], work.grad_out))


def _check(work: Work, systems: dict[str, tuple[HSTULayer, Layer]]) -> None:
    """Compares layers with a float32 run: in 16 bits PyTorch's own gradients of norms are the less exact ones.

    Also compiles the compiled systems and warms up.
    """
    layer = copy.deepcopy(systems[EAGER][0]).float()
    expected = _step(Work(work.x.detach().float().requires_grad_(), work.grad_out.float(), work.sequences),
                     layer, _eager(layer))  # fmt: skip
    for name, system in systems.items():
        found = _step(work, *system)
        for ours, exact in zip(found, expected, strict=True):
            error = float((ours.double() - exact.double()).norm() / exact.double().norm())
            if not name.startswith(EAGER) and not error <= _TOLERANCES[work.x.dtype]:
                raise BenchmarkError(f"{name} and {EAGER} in float32 differ by {error:.2g} of the norm")


def _time_step(work: Work, layer: HSTULayer, call: Layer) -> tuple[float, int]:
    """Returns seconds and, on a GPU, the bytes that the forward pass adds to the allocated memory, output included."""
    if work.x.is_cuda:
        return _time_on_device(work, layer, call)
    begin = time.perf_counter()
    _step(work, layer, call)
    return time.perf_counter() - begin, 0


def _time_on_device(work: Work, layer: HSTULayer, call: Layer) -> tuple[float, int]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before = torch.cuda.memory_allocated()
    keep_busy(_BUSY_MS)
    begin.record()
    out = call(work.x, work.sequences)
    kept = torch.cuda.memory_allocated() - before
    torch.autograd.grad(out, [work.x, *layer.parameters()], work.grad_out)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, kept


def _points(options: argparse.Namespace, seconds: dict[str, list[float]], kept: dict[str, int]) -> list[Point]:
    names = ("device", "dtype", "definition", "length", "batch", "dim", "heads", "threads")
    params: dict[str, Any] = {name: getattr(options, name) for name in names}
    if options.device == "cuda":
        params["device"] = torch.cuda.get_device_name()
    points = []
    for system, values in seconds.items():
        interval = median_interval([b / a for a, b in zip(values, seconds[EAGER], strict=True)])
        p5_s, p95_s = np.quantile(values, (0.05, 0.95)).tolist()
        median_s = statistics.median(values)
        extra: dict[str, Any] = {"ratio_low": interval.low, "ratio_high": interval.high}
        if options.device == "cuda":
            extra["kept_bytes"] = kept[system]
        points.append(
            Point(
                name="hstu_layer", params=params, system=system, median_s=median_s, p5_s=p5_s, p95_s=p95_s,
                samples=len(values), rate=options.batch * options.length / median_s, unit="tokens/s",
                ratio=interval.median, extra=extra,
            )
        )  # fmt: skip
    return points


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each system."""
    rows = [
        (
            point.system,
            format_time(point.median_s),
            format_ratio(point.ratio, point.extra["ratio_low"], point.extra["ratio_high"]),
            f"{point.extra['kept_bytes'] / 1e6:.1f}" if "kept_bytes" in point.extra else "",
        )
        for point in points
    ]
    return format_table(("layer", "forward + backward", f"against {EAGER} (95%)", "kept MB"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [Panel(title="HSTU layer", points=points, x=lambda point: point.params["dim"], x_label="columns")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
