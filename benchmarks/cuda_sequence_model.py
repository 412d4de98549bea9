"""Training steps of a model over sequences of ids on a GPU: dynamic tables, and TorchRec's managed collisions.

Both are TorchRec models, sharded on one rank under NCCL: ``headway.torchrec``, whose table takes any id, with a limit
on its rows and without, and a static table of as many rows behind ``MCHManagedCollisionModule``, which gives ids a row
each as long as there are any. Ids are the same, and the layers above begin alike. Nothing is compared but time: which
ids have a row differs.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.embedding_layers import SCATTER, make_points
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.plots import Panel
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.sequence_models import (
    HEADWAY,
    TORCHREC,
    UNLIMITED,
    ModelOptions,
    import_torchrec,
    make_features,
    make_model,
    table_counts,
)
from benchmarks.harness.table import format_bytes, format_ratio, format_table, format_time
from dlrm_examples.bls_dlrm.zipf import draw_zipf

DESCRIPTION = "training steps over sequences of unknown ids on a GPU, against TorchRec's managed collisions"

_SYSTEMS = (HEADWAY, UNLIMITED, TORCHREC)
_ID_BITS = 62  #: Managed collisions take none below 0.
_TABLE_BYTES = 4 << 30  #: of a table with a limit, where that leaves it less than --slots
_MAX_VALUES = (1 << 31) - 1  #: of all vectors of a step: kernels of others may count in 32 bits
_PARAMS = ("length", "ids", "exponent", "batches", "optimizer", "eviction_interval")


@dataclass
class System:
    """One system's model and what was measured of its steps."""

    model: Any
    dense: torch.optim.Optimizer
    device_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    host_s: list[float] = field(default_factory=list)
    loss: float = math.nan


def main(argv: Sequence[str]) -> int:
    """Command line; returns the exit status."""
    parser = make_parser("cuda_sequence_model", DESCRIPTION, ranks=(1,), against=TORCHREC, rounds=12)
    for name, default, text in (
        ("--base-dim", 32, "values of a vector, times each of --factors"),
        ("--batch", 8192, "lists of a step, or fewer where all vectors would have 2^31 values"),
        ("--length", 128, "ids of a list; TorchRec gives a list to one thread in some kernels"),
        ("--batches", 6, "that take turns; all of them are warm-up first"),
        ("--ids", 50_000_000, "that may come"),
        ("--slots", 2_000_000, f"rows of tables with a limit, or fewer, of {format_bytes(_TABLE_BYTES)} together"),
        ("--eviction-interval", 1, "batches after which managed collisions choose their ids anew"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument(
        "--factors", type=whole_number(1), nargs="+", default=[1, 8, 64], metavar="N",
        help="of the dimension (default: 1 8 64)",
    )  # fmt: skip
    parser.add_argument("--exponent", type=float, default=1.05, help="of ids' popularity (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("row_wise_adagrad", "adam"), default="row_wise_adagrad",
                        help="of tables (default: %(default)s)")  # fmt: skip
    parser.add_argument("--systems", choices=_SYSTEMS, nargs="+", default=list(_SYSTEMS), help="(default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it out")
    return measure_and_report(
        "cuda_sequence_model", parser, parser.parse_args(argv), measure=measure, format_points=format_points,
        panels=_panels,
    )  # fmt: skip


def measure(options: argparse.Namespace) -> list[Point]:
    """Every dimension, each system. What fails is told and left out.

    Raises:
        BenchmarkError: there is no GPU or no TorchRec, or nothing could be measured.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError("torch finds no GPU")
    import_torchrec()
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    points = []
    with _process_group(device):
        random = np.random.default_rng(1)
        batches = [_draw_ids(options, random, device) for _ in range(options.batches)]
        for factor in options.factors:
            points += _measure_factor(options, factor, batches, device)
            _free(device)
    if not points:
        raise BenchmarkError("no system could be measured")
    return points


@contextmanager
def _process_group(device: torch.device) -> Iterator[None]:
    """Of one rank."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _draw_ids(options: argparse.Namespace, random: np.random.Generator, device: torch.device) -> torch.Tensor:
    size = options.batch * options.length
    ranks = draw_zipf(random, num_values=options.ids, exponent=options.exponent, size=size)
    # An odd factor leaves all of them different.
    return (torch.from_numpy(ranks) * SCATTER & (1 << _ID_BITS) - 1).to(device).view(-1, options.length)


def _num_lists(options: argparse.Namespace, dim: int) -> int:
    """That fit into what kernels of others may count."""
    return int(min(options.batch, _MAX_VALUES // (dim * options.length)))


def _measure_factor(
    options: argparse.Namespace, factor: int, ids_NBL: Sequence[torch.Tensor], device: torch.device
) -> list[Point]:
    dim = options.base_dim * factor
    num_lists = _num_lists(options, dim)
    batches = [make_features(ids_BL[:num_lists]) for ids_BL in ids_NBL]
    model_options = ModelOptions(
        dim=dim,
        slots=min(options.slots, _TABLE_BYTES // (4 * dim)),
        optimizer=options.optimizer,
        eviction_interval=options.eviction_interval,
        device=device,
    )
    systems: dict[str, System] = {}
    for name in options.systems:
        if name != TORCHREC or options.against != "none":
            with _told(systems, name, model_options):
                systems[name] = _make_system(name, model_options)
    for turn in range(options.batches + options.rounds):
        names = list(systems)
        for name in names if turn % 2 == 0 else reversed(names):
            with _told(systems, name, model_options):
                _step(systems[name], batches[turn % options.batches], device, is_timed=turn >= options.batches)
    return _points_of(options, factor, model_options, systems)


def _make_system(name: str, options: ModelOptions) -> System:
    model = make_model(name, options)
    dense = [parameter for path, parameter in model.named_parameters() if ".over." in path or path.startswith("over.")]
    return System(model, torch.optim.SGD(dense, lr=0.01))


@contextmanager
def _told(systems: dict[str, System], name: str, options: ModelOptions) -> Iterator[None]:
    """A system that fails is left out, and the others are measured."""
    try:
        yield
    except Exception:  # Whatever it is: a peer's, or one that says that there is no memory.
        print(f"{name}, dim {options.dim}, is left out:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        systems.pop(name, None)
        _free(options.device)


def _step(system: System, features: Any, device: torch.device, *, is_timed: bool) -> None:
    """A training step alone on the device."""
    timer = _Timer(device)
    system.dense.zero_grad()
    loss = system.model(features)
    loss.backward()
    system.dense.step()
    seconds = timer.stop()
    system.loss = loss.item()
    if not math.isfinite(system.loss):
        raise BenchmarkError("the loss is not finite")
    if is_timed:
        for values, each in zip((system.device_s, system.wall_s, system.host_s), seconds, strict=True):
            values.append(each)


class _Timer:
    """Seconds between two events on the device, until it has nothing to do, and until the host had enqueued all."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            torch.cuda.synchronize()
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._begin.record()
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, float, float]:
        host_s = time.perf_counter() - self._started
        if not self._is_cuda:
            return host_s, host_s, host_s
        self._end.record()
        torch.cuda.synchronize()
        return self._begin.elapsed_time(self._end) / 1e3, time.perf_counter() - self._started, host_s


def _points_of(
    options: argparse.Namespace, factor: int, model_options: ModelOptions, systems: dict[str, System]
) -> list[Point]:
    if not systems:
        return []
    params: dict[str, Any] = {"tables": 1}
    params |= {name: getattr(options, name) for name in _PARAMS}
    dim = model_options.dim
    params |= {
        "dim": dim,
        "factor": factor,
        "slots": model_options.slots,
        "batch": _num_lists(options, dim),
    }
    params["device"] = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    return make_points(
        "cuda_sequence_model",
        params,
        {name: system.device_s for name, system in systems.items()},
        reference=TORCHREC,
        wall_s={name: statistics.median(system.wall_s) for name, system in systems.items()},
        host_s={name: statistics.median(system.host_s) for name, system in systems.items()},
        mean_s={name: statistics.fmean(system.device_s) for name, system in systems.items()},
        loss={name: system.loss for name, system in systems.items()},
        table={name: table_counts(name, system.model) for name, system in systems.items()},
    )


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # For tables, whose memory is not torch's.


def format_points(points: Sequence[Point]) -> str:
    """The table: one row for each dimension and system."""
    rows = []
    for point in points:
        low, high = point.extra.get("ratio_low"), point.extra.get("ratio_high")
        rows.append(
            (
                f"dim {point.params['dim']}, {point.params['slots']} slots",
                point.system,
                format_time(point.median_s),
                format_time(point.extra["wall_s"]),
                format_time(point.extra["host_s"]),
                f"{(point.rate or 0) / 1e6:.1f}",
                format_ratio(point.ratio, low, high),
            )
        )
    return format_table(("", "system", "a step", "by the clock", "enqueued in", "million ids/s", "faster (95%)"), rows)


def _panels(points: Sequence[Point]) -> list[Panel]:
    return [
        Panel(title="a training step", points=list(points), x=lambda point: point.params["dim"],
              x_label="values of a vector", label=lambda point: point.system)
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
