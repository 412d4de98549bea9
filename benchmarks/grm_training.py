# SPDX-License-Identifier: Apache-2.0
"""Training steps of generative recommenders: tokens per second and MFU, with input, lookups and updates.

Samples are generated into a Parquet folder and trained on by ``headway.training.Trainer``, so reading, lookups of
tables, both passes, the sum of gradients and all updates are in a step. Ids have a Zipf popularity, and every batch
brings new ones. MFU is the part of ``--peak`` that matrix products and causal attention reach. The backward pass counts
twice the products and 2.5 times the attention of the forward pass (``GRM.flops()``).

Shapes: ``grm_4g`` and ``grm_110g`` are the model sizes of the MTGRBoost paper; lengths are lognormal with a mean of
600, at most 3,000. ``recsys_examples`` is that of NVIDIA's published figure: 8 layers, 1024 columns, 4 heads of 256, 32
samples of up to 4,096 events. Its generator draws from a Zipf law of exponent 1.2 over lengths that it permutes anew
for each batch, so the mean is 2,048, and a batch has one length several times. ``zipf_lengths`` has the same model and
the law without the permutation: its mean is 250. ``dlrm_v4`` is that of MLPerf Training 6.1: 3 layers, 512 columns, 4
heads of 128, up to 4,096 events.

With several ranks a step has as many samples per rank. ``--balance`` moves samples between ranks for even work, and
``--prioritized`` reads rows ahead of updates; both are Headway's. MFU is that of a GPU.

With ``--torchrec`` TorchRec trains the same shapes on the same samples in the same run (harness/torchrec_grm.py). On a
GPU it uses the Triton kernels of the checkout ``--generative-recommenders``. It gets its batches from memory, joined
before.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from headway.data import BatchReader, ParquetFolder
from headway.nn.config import Recompute
from headway.training import Progress, Trainer, TrainingConfig

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.gpus import expect_gpu_each
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.torch_ranks import run_torch_ranks
from benchmarks.harness.torchrec_grm import (
    PeerBatch,
    TorchRecPeer,
    import_attention,
    one_rank,
    reference_attention,
)
from dlrm_examples.support.data.zipf import draw_zipf
from dlrm_examples.support.text_table import format_bytes, format_ratio, format_table, format_time

DESCRIPTION = "training of generative recommenders from Parquet files: tokens per second and MFU"


@dataclass(frozen=True)
class Lengths:
    """Lengths of samples, targets included.

    Attributes:
        longest: largest length.
        mean: of the lognormal law.
        zipf: exponent of a Zipf law instead, if not 0.
        permuted_every: draws of the Zipf law after which its lengths are permuted anew; 0: short ones are frequent.
    """

    longest: int = 3000
    mean: float = 600
    zipf: float = 0
    permuted_every: int = 0


@dataclass(frozen=True)
class Shape:
    """A model, and the samples of its steps.

    Attributes:
        model: settings of the section ``model``.
        batch: samples of a step.
        lengths: of samples.
    """

    model: Mapping[str, Any]
    batch: int = 128
    lengths: Lengths = field(default_factory=Lengths)


_EIGHT_LAYERS = {"preset": "grm_110g", "num_layers": 8, "max_length": 4096}
SHAPES = {
    "grm_4g": Shape({"preset": "grm_4g"}),
    "grm_110g": Shape({"preset": "grm_110g"}),
    "recsys_examples": Shape(_EIGHT_LAYERS, batch=32, lengths=Lengths(4096, zipf=1.2, permuted_every=32)),
    "zipf_lengths": Shape(_EIGHT_LAYERS, batch=32, lengths=Lengths(4096, zipf=1.2)),
    "dlrm_v4": Shape(
        {"preset": "grm_4g", "num_heads": 4, "head_dim": 128, "max_length": 4096}, lengths=Lengths(4096, mean=1800)
    ),
}
_TARGETS = 8  #: Candidate items of a sample, each with the labels ``click`` and ``buy``.
_TARGET_TIME = 1 << 40  #: Time of the first target: later than all events.
_WAIT_S = 120  #: Seconds that a rank waits for another one. No step takes nearly as long.
#: Options that each of several ranks gets.
_OF_RANKS = ("device", "steps", "peak", "slots", "no_tma", "sort_by_length", "generative_recommenders")
_EVENTS = ("item", "shop")  #: Id columns of an event and of a target.


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("grm_training", DESCRIPTION, ranks=(1,), rounds=8)
    parser.add_argument(
        "--shapes", choices=SHAPES, nargs="+", default=["grm_4g", "grm_110g"], help="(default: both GRM)"
    )
    for name, default, text in (
        ("--micro-batches", 1, "parts of a step"),
        ("--steps", 5, "steps of a round"),
        ("--factor", 1, "of the dimension of embeddings"),
        ("--ids", 50_000_000, "that may come"),
        ("--slots", 1 << 22, "rows of a table of TorchRec"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--batch", type=whole_number(1), help="samples of a step (default: by shape)")
    parser.add_argument("--mean", type=float, help="mean length of a lognormal law (default: by shape)")
    parser.add_argument("--longest", type=whole_number(1), help="longest sample (default: by shape)")
    parser.add_argument(
        "--peak", type=float, default=989.4, help="of the device in TFLOP/s (default: %(default)s, H100)"
    )
    parser.add_argument(
        "--recompute", choices=get_args(Recompute), default="none", help="by the backward pass (default: %(default)s)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    parser.add_argument(
        "--balance",
        choices=("none", "fixed", "variable"),
        default="fixed",
        help="of several ranks (default: %(default)s)",
    )
    parser.add_argument("--no-prioritized", dest="prioritized", action="store_false", help="update rows as they come")
    parser.add_argument(
        "--time-limit", type=whole_number(1), default=300, help="seconds of several ranks (default: 300)"
    )
    parser.add_argument("--torchrec", action="store_true", help="compare with TorchRec")
    parser.add_argument(
        "--generative-recommenders", type=Path, metavar="DIR", help="checkout with the kernels of TorchRec's model"
    )
    parser.add_argument("--sort-by-length", action="store_true", help="of those kernels: start with long sequences")
    parser.add_argument("--no-tma", action="store_true", help="of those kernels: without tensor descriptors")
    return measure_and_report(
        "grm_training", parser, parser.parse_args(argv), measure=measure, format_points=format_points
    )


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures a point for each shape and system.

    Raises:
        BenchmarkError: the device or a system is missing.
    """
    if options.device == "cuda":
        expect_gpu_each(options.ranks)
    return [
        point for name in options.shapes for ranks in options.ranks for point in _measure_shape(options, name, ranks)
    ]


def _measure_shape(options: argparse.Namespace, name: str, num_ranks: int) -> list[Point]:
    shape = _shape_of(options, name)
    num_steps = options.steps * (options.rounds + 2)  # The first two rounds warm up.
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_samples(folder, num_samples=shape.batch * num_ranks * num_steps, lengths=shape.lengths, ids=options.ids)
        config = _config_of(options, folder, shape, num_steps, num_ranks)
        systems = {"headway": train_headway, "torchrec": train_peer} if options.torchrec else {"headway": train_headway}
        params = {
            "shape": name, "batch": shape.batch, "micro_batches": options.micro_batches, "factor": options.factor,
            "mean": None if shape.lengths.zipf else shape.lengths.mean, "longest": shape.lengths.longest,
            "zipf": shape.lengths.zipf, "permuted_every": shape.lengths.permuted_every, "ranks": num_ranks,
            "recompute": options.recompute,
            "balance": config.data.balance, "prioritized": config.run.prioritized_updates,
            "peer": [name for name in ("no_tma", "sort_by_length") if getattr(options, name)],
        }  # fmt: skip
        points: list[Point] = []
        for system, train in systems.items():
            gc.collect()
            if options.device == "cuda" and num_ranks == 1:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            rounds = train(options, config) if num_ranks == 1 else _train_on_ranks(options, config, system, num_ranks)
            points.append(_make_point(options, params, system, rounds))
    if len(points) == 2:
        ours, theirs = points
        points[0] = replace(ours, ratio=(ours.rate or 0) / (theirs.rate or 1))
    return points


def _shape_of(options: argparse.Namespace, name: str) -> Shape:
    shape = SHAPES[name]
    lengths = shape.lengths
    if options.mean is not None:
        lengths = replace(lengths, mean=options.mean, zipf=0, permuted_every=0)
    if options.longest is not None:
        lengths = replace(lengths, longest=options.longest)
    return replace(shape, batch=options.batch or shape.batch, lengths=lengths)


def write_samples(folder: Path, *, num_samples: int, lengths: Lengths, ids: int) -> None:
    """Writes samples with event sequences of drawn lengths and _TARGETS targets, without contextual features."""
    draw = np.random.default_rng(1)
    of_samples = _draw_lengths(draw, lengths, num_samples)
    for part, of_file in enumerate(np.array_split(of_samples, max(1, num_samples // 512))):
        columns: dict[str, pa.Array] = {}
        for prefix, sizes in (("", of_file), ("target_", np.full(len(of_file), _TARGETS))):
            offsets = pa.array(np.concatenate(([0], sizes.cumsum())).astype(np.int32))
            total = int(sizes.sum())
            values = {name: draw_zipf(draw, num_values=ids, exponent=1.05, size=total) for name in _EVENTS}
            values["time"] = np.arange(total) + (_TARGET_TIME if prefix else 0)
            if prefix:
                values |= {name: draw.integers(0, 2, total) for name in ("click", "buy")}
            else:
                values["action"] = draw.integers(0, 4, total)
            for name, column in values.items():
                full = name if name in ("click", "buy", "action") else prefix + name
                columns[full] = pa.ListArray.from_arrays(offsets, pa.array(column))
        pq.write_table(pa.table(columns), folder / f"part-{part:04}.parquet", row_group_size=64)


def _draw_lengths(draw: np.random.Generator, lengths: Lengths, num_samples: int) -> npt.NDArray[np.int64]:
    """Draws lengths of histories, (num_samples,)."""
    if lengths.zipf:
        drawn = draw_zipf(draw, num_values=lengths.longest, exponent=lengths.zipf, size=num_samples) + 1
        for part in np.split(drawn, range(every, num_samples, every)) if (every := lengths.permuted_every) else ():
            part[:] = 1 + draw.permutation(lengths.longest)[part - 1]
    else:
        sigma = 0.8
        drawn = np.exp(draw.normal(np.log(lengths.mean) - sigma**2 / 2, sigma, num_samples)).astype(np.int64)
    return drawn.clip(2, lengths.longest - _TARGETS)


def _config_of(
    options: argparse.Namespace, folder: Path, shape: Shape, num_steps: int, num_ranks: int
) -> TrainingConfig:
    balance = {} if num_ranks == 1 or options.balance == "none" else {"balance": options.balance, "scope": "global"}
    return TrainingConfig.of(
        {
            "data": {
                "train": str(folder),
                "events": _EVENTS,
                "actions": ["action"],
                "labels": ["click", "buy"],
                "global_batch": shape.batch * num_ranks,
                "order": "time" if shape.lengths.permuted_every else "shuffled",  # "time": batches as they were drawn.
                "micro_batches": options.micro_batches,
                "num_streams": 16,  # Disjoint parts of the rows, which are read in turn.
                "read_ahead": 4,  # Steps in memory beside the one in use.
            }
            | balance,
            # ``given``: the probability of ``buy`` is that of ``click`` times that of ``buy`` given ``click``.
            "model": {"dimension_factor": options.factor, "recompute": options.recompute, "given": {"buy": "click"}}
            | dict(shape.model),
            "run": {
                "device": options.device,
                "log_every": options.steps,
                "max_steps": num_steps,
                "prioritized_updates": options.prioritized and num_ranks > 1,
            },
        }
    )


def _train_on_ranks(options: argparse.Namespace, config: TrainingConfig, system: str, num_ranks: int) -> Rounds:
    settings = {name: value for name, value in vars(options).items() if name in _OF_RANKS}
    printed = run_torch_ranks(
        "benchmarks.torch_ranks.grm_training_rank",
        {"system": system, "config": config.as_dict(), "options": settings, "timeout_s": _WAIT_S},
        num_ranks=num_ranks,
        time_limit_s=options.time_limit,
    )
    return Rounds(**json.loads(next(line for line in printed.splitlines() if line.startswith("{"))))


@dataclass(frozen=True)
class Rounds:
    """Measured rounds of a system.

    Attributes:
        seconds: of a step, by round.
        tokens_per_s: by round.
        extra: further fields of the point.
        peak_bytes: of the memory that PyTorch has allocated on a device.
    """

    seconds: Sequence[float]
    tokens_per_s: Sequence[float]
    extra: Mapping[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0


def train_headway(
    options: argparse.Namespace, config: TrainingConfig, group: dist.ProcessGroup | None = None
) -> Rounds:
    """Trains Headway's model; one rank of ``group``, or alone."""
    rounds: list[Progress] = []  # The trainer reports once per round, after ``log_every`` steps.
    Trainer(config, group=group, say=lambda line: print(line, file=sys.stderr, flush=True), observe=rounds.append).run()
    flops = statistics.median(each.flops_per_s or 0 for each in rounds[2:]) / (1 if group is None else group.size())
    last = rounds[-1]
    return Rounds(
        [(later.seconds - earlier.seconds) / options.steps for earlier, later in pairwise(rounds[1:])],
        [each.tokens_per_s for each in rounds[2:]],
        {
            "tflops": flops / 1e12,
            "mfu": flops / (options.peak * 1e12),
            "input_wait": statistics.median(each.input_wait for each in rounds[2:]),
            "exchange_wait": last.exchange_wait,
            "collision_share": last.collision_share,
            "planned_idle": None if last.balance is None else last.balance["planned_idle"],
            "unbalanced_idle": None if last.balance is None else last.balance["unbalanced_idle"],
        },
        _peak_bytes(options),
    )


def _peak_bytes(options: argparse.Namespace) -> int:
    return int(torch.cuda.max_memory_allocated()) if options.device == "cuda" else 0


def train_peer(options: argparse.Namespace, config: TrainingConfig, group: dist.ProcessGroup | None = None) -> Rounds:
    """Trains TorchRec's model on the samples of the same steps; one rank of ``group``, or alone."""
    if group is None:
        with one_rank(options.device) as alone:
            return train_peer(options, config, alone)
    schema, model = config.data.schema(), config.model.grm()
    reader = BatchReader(
        ParquetFolder(Path(config.data.train), schema),
        global_batch=config.data.global_batch or 1,
        order=config.data.order,
        num_streams=config.data.num_streams,
        rank=group.rank(),
        num_ranks=group.size(),
    )
    batches = [PeerBatch.of(step.batches[0]) for step in reader]
    attention = reference_attention
    if options.device == "cuda":
        if options.generative_recommenders is None:
            raise BenchmarkError("--torchrec on a GPU needs --generative-recommenders DIR")
        attention = import_attention(
            options.generative_recommenders,
            has_tma=not options.no_tma,
            is_sorted=options.sort_by_length,
            longest=model.max_length,
        )
    seconds, rates = [], []
    is_cuda = options.device == "cuda"
    peer = TorchRecPeer(
        model,
        slots={"item": options.slots, "shop": options.slots, "action": 64},
        num_labels=len(config.data.labels),
        attention=attention,
        has_dedup=is_cuda and group.size() > 1,  # On one GPU it only costs time.
        group=group,
        device=torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu"),
    )
    steps = peer.steps(iter(batches))
    for number, of_round in enumerate(_chunks(batches, options.steps)):
        begin = time.perf_counter()
        for _ in islice(steps, len(of_round)):
            pass
        if is_cuda:
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - begin
        tokens = torch.tensor(sum(each.num_tokens for each in of_round))
        if group.size() > 1:
            dist.all_reduce(tokens)  # In the default group, which is one of Gloo.
        print(f"torchrec, round {number}: {elapsed / len(of_round):.4f} s a step", file=sys.stderr, flush=True)
        if number >= 2:
            seconds.append(elapsed / len(of_round))
            rates.append(tokens.item() / elapsed)
    steps.close()
    del peer, steps
    return Rounds(seconds, rates, peak_bytes=_peak_bytes(options))


def _chunks(batches: Sequence[PeerBatch], size: int) -> Iterator[Sequence[PeerBatch]]:
    for begin in range(0, len(batches), size):
        yield batches[begin : begin + size]


def _make_point(options: argparse.Namespace, params: dict[str, Any], system: str, rounds: Rounds) -> Point:
    quantiles = np.quantile(rounds.seconds, (0.05, 0.5, 0.95))
    is_cuda = options.device == "cuda"
    return Point(
        name="grm_training", params=params, system=system,
        median_s=float(quantiles[1]), p5_s=float(quantiles[0]), p95_s=float(quantiles[2]), samples=len(rounds.seconds),
        rate=statistics.median(rounds.tokens_per_s), unit="tokens/s",
        extra={
            **rounds.extra,
            "peak_bytes": rounds.peak_bytes,
            "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        },
    )  # fmt: skip


def format_points(points: Sequence[Point]) -> str:
    """Formats the table: one row for each shape and system."""
    rows = [
        (
            "{shape}, {batch} samples".format(**point.params),
            str(point.params["ranks"]),
            point.system,
            format_time(point.median_s),
            f"{(point.rate or 0) / 1e3:,.0f}",
            format_ratio(point.ratio, None, None),
            *_efficiency(point),
            format_bytes(point.extra["peak_bytes"]),
        )
        for point in points
    ]  # fmt: skip
    columns = (
        "model",
        "ranks",
        "system",
        "a step",
        "thousand tokens/s",
        "ratio",
        "TFLOP/s",
        "MFU",
        "input wait",
        "peak memory",
    )
    return format_table(columns, rows)


def _efficiency(point: Point) -> tuple[str, str, str]:
    if "mfu" not in point.extra:
        return "", "", ""
    return f"{point.extra['tflops']:.1f}", f"{point.extra['mfu']:.1%}", f"{point.extra['input_wait']:.1%}"
