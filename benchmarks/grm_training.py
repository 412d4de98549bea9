# SPDX-License-Identifier: Apache-2.0
"""Training steps of generative recommenders: tokens per second and MFU, with input, lookups and updates.

Samples are generated into a Parquet folder and trained on by ``headway.training.Trainer``, so reading, lookups of
tables, both passes, the sum of gradients and all updates are in a step. Lengths are lognormal with a mean of 600, at
most 3,000. Ids have a Zipf popularity, and every batch brings new ones. MFU is the part of ``--peak`` that matrix
products and causal attention reach. The backward pass counts twice the products and 2.5 times the attention of the
forward pass (``GRM.flops()``). The presets are the two model sizes of the MTGRBoost paper.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from headway.training import Progress, Trainer, TrainingConfig

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_bytes, format_table, format_time

DESCRIPTION = "training of generative recommenders from Parquet files: tokens per second and MFU"

_PRESETS = ("grm_4g", "grm_110g")
_TARGETS = 8  #: Candidate items of a sample, each with the labels ``click`` and ``buy``.
_TARGET_TIME = 1 << 40  #: Time of the first target: later than all events.
_EVENTS = ("item", "shop")  #: Id columns of an event and of a target.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("grm_training", DESCRIPTION, ranks=(1,), rounds=8)
    parser.add_argument("--presets", choices=_PRESETS, nargs="+", default=list(_PRESETS), help="(default: all)")
    for name, default, text in (
        ("--batch", 128, "samples of a step"),
        ("--micro-batches", 1, "parts of a step"),
        ("--steps", 5, "steps of a round"),
        ("--factor", 1, "of the dimension of embeddings"),
        ("--ids", 50_000_000, "that may come"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--mean", type=float, default=600, help="mean length (default: %(default)s)")
    parser.add_argument("--longest", type=whole_number(1), default=3000, help="longest one (default: %(default)s)")
    parser.add_argument(
        "--peak", type=float, default=989.4, help="of the device in TFLOP/s (default: %(default)s, H100)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    return measure_and_report(
        "grm_training", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each preset.

    Raises:
        BenchmarkError: the device is missing.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_steps = options.steps * (options.rounds + 2)  # The first two rounds warm up.
        write_samples(folder, num_samples=options.batch * num_steps, options=options)
        return [_measure_preset(options, folder, preset, num_steps) for preset in options.presets]


def write_samples(folder: Path, *, num_samples: int, options: argparse.Namespace) -> None:
    """Writes samples with event sequences of lognormal lengths and _TARGETS targets, without contextual features."""
    draw = np.random.default_rng(1)
    sigma = 0.8
    lengths = np.exp(draw.normal(np.log(options.mean) - sigma**2 / 2, sigma, num_samples)).astype(np.int64)
    lengths = lengths.clip(2, options.longest - _TARGETS)
    for part, of_file in enumerate(np.array_split(lengths, max(1, num_samples // 512))):
        columns: dict[str, pa.Array] = {}
        for prefix, sizes in (("", of_file), ("target_", np.full(len(of_file), _TARGETS))):
            offsets = pa.array(np.concatenate(([0], sizes.cumsum())).astype(np.int32))
            total = int(sizes.sum())
            values = {name: draw_zipf(draw, num_values=options.ids, exponent=1.05, size=total) for name in _EVENTS}
            values["time"] = np.arange(total) + (_TARGET_TIME if prefix else 0)
            if prefix:
                values |= {name: draw.integers(0, 2, total) for name in ("click", "buy")}
            else:
                values["action"] = draw.integers(0, 4, total)
            for name, column in values.items():
                full = name if name in ("click", "buy", "action") else prefix + name
                columns[full] = pa.ListArray.from_arrays(offsets, pa.array(column))
        pq.write_table(pa.table(columns), folder / f"part-{part:04}.parquet", row_group_size=64)


def _measure_preset(options: argparse.Namespace, folder: Path, preset: str, num_steps: int) -> Point:
    config = TrainingConfig.of(
        {
            "data": {
                "train": str(folder),
                "events": _EVENTS,
                "actions": ["action"],
                "labels": ["click", "buy"],
                "global_batch": options.batch,
                "micro_batches": options.micro_batches,
                "num_streams": 16,
                "read_ahead": 4,
            },
            # ``given``: the probability of ``buy`` is that of ``click`` times that of ``buy`` given ``click``.
            "model": {"preset": preset, "dimension_factor": options.factor, "given": {"buy": "click"}},
            "run": {"device": options.device, "log_every": options.steps, "max_steps": num_steps},
        }
    )
    rounds: list[Progress] = []
    torch.cuda.empty_cache()
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    Trainer(config, say=lambda line: print(line, file=sys.stderr, flush=True), observe=rounds.append).run()
    seconds = [later.seconds - earlier.seconds for earlier, later in pairwise(rounds[1:])]
    tokens_per_s = statistics.median(each.tokens_per_s for each in rounds[2:])
    flops = statistics.median(each.flops_per_s or 0 for each in rounds[2:])
    quantiles = np.quantile(seconds, (0.05, 0.5, 0.95)) / options.steps
    return Point(
        name="grm_training",
        params={
            "preset": preset, "batch": options.batch, "micro_batches": options.micro_batches, "factor": options.factor,
            "mean": options.mean, "longest": options.longest,
        },
        system="headway", median_s=float(quantiles[1]), p5_s=float(quantiles[0]), p95_s=float(quantiles[2]),
        samples=len(seconds), rate=tokens_per_s, unit="tokens/s",
        extra={
            "tflops": flops / 1e12, "mfu": flops / (options.peak * 1e12),
            "input_wait": statistics.median(each.input_wait for each in rounds[2:]),
            "peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else 0,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        },
    )  # fmt: skip


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each preset."""
    rows = [
        (
            "{preset}, {batch} samples in {micro_batches} parts".format(**point.params),
            format_time(point.median_s),
            f"{(point.rate or 0) / 1e3:,.0f}",
            f"{point.extra['tflops']:.1f}",
            f"{100 * point.extra['mfu']:.1f}%",
            f"{100 * point.extra['input_wait']:.1f}%",
            format_bytes(point.extra["peak_bytes"]),
        )
        for point in points
    ]
    return format_table(("model", "a step", "thousand tokens/s", "TFLOP/s", "MFU", "input wait", "peak memory"), rows)
