# SPDX-License-Identifier: Apache-2.0
"""Requests per second of a served generative recommender, beside the same model called in eager mode.

A request has one user with a history, and many candidates to score. One rank of ``headway serve`` answers clients of
``headway load`` that wait for their replies, over gRPC. Each reply is compared with the prediction of ``Predictor``,
bit by bit. The eager model is the one that was exported, under ``autocast`` and without gradients, with its tables on
the same device; its requests are in memory already, so it has neither a network nor a queue. It gets one request per
call, and as many as ``--eager-batches`` says: ``eager best`` is the fastest of these.

Weights are random, and the tables have rows for all ids of the requests. Histories are lognormal.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from headway.data import SampleSchema
from headway.data.sample_batch import SampleBatch
from headway.embedding import LOCAL
from headway.embedding.config import NoOptimizer
from headway.nn import GRM, GRMConfig
from headway.serving import Bucket, DenseGRM, Predictor, Request, export
from headway.training.train_step import DType
from torch import Tensor

from benchmarks.harness.arguments import make_parser, whole_number
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.points import Point
from benchmarks.harness.report import measure_and_report
from benchmarks.harness.serve_command import Load, LoadRun, ServedRanks, expected_replies, headway_serve, write_log
from benchmarks.harness.served_dlrm import expect_programs, free_ports
from dlrm_examples.support.text_table import format_ratio, format_table

DESCRIPTION = "serving of generative recommenders: requests per second over gRPC, beside the model in eager mode"

SCHEMA = SampleSchema(
    context=("user",), events=("item", "shop"), actions=("action",), labels=("click", "buy"), time=None
)
_SIGMA = 0.8  #: Deviation of the logarithm of a history's length.
_EAGER, _EAGER_BEST, _OWN = "eager, one request", "eager best", "headway serve"
#: For a try on a CPU.
_SMALL = {"dim": 64, "num_layers": 2, "num_heads": 2, "head_dim": 32, "embedding_dim": 32, "expert_hidden": 64}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = make_parser("serving_grm", DESCRIPTION, ranks=(1,), rounds=5)
    parser.add_argument(
        "--model", choices=("grm_4g", "grm_110g", "small"), default="grm_4g", help="(default: %(default)s)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=get_args(DType), default="bfloat16", help="(default: %(default)s)")
    for name, default, text in (
        ("--candidates", 256, "items to score of a request"),
        ("--mean", 600, "mean length of a history"),
        ("--longest", 2800, "longest history"),
        ("--requests", 64, "different requests"),
        ("--ids", 1_000_000, "that may come"),
        ("--seconds", 5, "of a run of each system"),
        ("--in-flight", 3, "batches of the rank"),
    ):
        parser.add_argument(name, type=whole_number(1), default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--batch-delay", type=whole_number(0), default=500, metavar="US", help="(default: %(default)s)")
    parser.add_argument(
        "--clients", type=whole_number(1), nargs="+", default=[1, 32], metavar="N", help="at once (default: 1 32)"
    )
    parser.add_argument(
        "--buckets", type=_users_and_tokens, nargs="+", default=[(1, 2816), (8, 6144)], metavar="USERS:TOKENS",
        help="compiled sizes of batches (default: 1:2816 8:6144)",
    )  # fmt: skip
    parser.add_argument(
        "--eager-batches", type=whole_number(1), nargs="+", default=[2, 4, 8, 16], metavar="N",
        help="requests of a call, beside one (default: 2 4 8 16)",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --device cpu --model small needs none")
    return measure_and_report("serving_grm", parser, options, measure=measure, format_points=format_points)


def measure(options: argparse.Namespace) -> list[Point]:
    """Measures all systems in turns; returns a point of each."""
    expect_programs()
    samples = draw_samples(options)
    model = make_model(options, samples)
    eager = EagerModel(model, samples, options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        package = export_package(model, folder / "package", options)
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        requests = [request_of(sample) for sample in samples]
        expected = expected_replies(package, requests)
        expect_equal_predictions(package, samples[0], eager, options)
        write_log(folder / "requests.jsonl", requests)
        [port] = free_ports(1)
        largest = max(users for users, _ in options.buckets)
        words = ("--max-rows", str(largest * options.candidates), "--batch-delay", str(options.batch_delay))
        words += ("--max-in-flight", str(options.in_flight))
        with headway_serve(package, *words, ranks=1, port=port) as served:

            def serve(clients: int) -> LoadRun:
                return run_load(package, served, clients, folder / "requests.jsonl", expected, options)

            serve(max(options.clients))
            return _points(options, eager, serve)


def _points(options: argparse.Namespace, eager: EagerModel, serve: Callable[[int], LoadRun]) -> list[Point]:
    rates: dict[str, list[float]] = {}
    runs: dict[str, list[LoadRun]] = {}
    best: list[int] = []
    for index in range(options.rounds):
        by_batch = {batch: eager.requests_per_s(batch) for batch in (1, *options.eager_batches)}
        best.append(max(by_batch, key=by_batch.__getitem__))
        rates.setdefault(_EAGER, []).append(by_batch[1])
        rates.setdefault(_EAGER_BEST, []).append(by_batch[best[-1]])
        for clients in options.clients:
            name = f"{_OWN}, {clients} clients"
            run = serve(clients)
            runs.setdefault(name, []).append(run)
            rates.setdefault(name, []).append(run.answered_per_s)
        shown = ", ".join(f"{name} {found[-1]:,.0f}/s" for name, found in rates.items())
        print(f"round {index + 1}: {shown}", flush=True)
    params = {
        name: getattr(options, name)
        for name in ("model", "device", "dtype", "candidates", "mean", "longest", "batch_delay", "in_flight")
    } | {"buckets": [f"{users}:{tokens}" for users, tokens in options.buckets]}
    points = []
    for system, found in rates.items():
        ratios = [rate / one for rate, one in zip(found, rates[_EAGER], strict=True)]
        extra: dict[str, Any] = {"lowest_rate": min(found), "highest_rate": max(found)}
        extra |= {"ratio_low": min(ratios), "ratio_high": max(ratios)}
        if system == _EAGER_BEST:
            extra["requests_per_call"] = statistics.mode(best)
        if system in runs:
            for name in ("p50_ms", "p99_ms"):
                extra[name] = statistics.median(run.result[name] for run in runs[system])
            extra |= {name: sum(getattr(run, name) for run in runs[system]) for name in ("num_right", "num_wrong")}
        points.append(
            Point(
                name="serving_grm", params=params, system=system, samples=len(found), rate=statistics.median(found),
                unit="requests/s", ratio=statistics.median(ratios), extra=extra,
            )
        )  # fmt: skip
    return points


class EagerModel:
    """The model as a Python service would call it.

    Args:
        model: with its tables in host memory.
        samples: a batch of one user each.
    """

    def __init__(self, model: GRM, samples: Sequence[SampleBatch], options: argparse.Namespace) -> None:
        self._device = torch.device(options.device)
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._seconds: int = options.seconds
        self._samples = samples
        self.model = model
        if self._device.type == "cuda":
            self.model = make_model(options, samples, device=self._device)
            self.model.load_state_dict(model.state_dict())
        self.model.eval()

    def predict(self, batch: SampleBatch) -> dict[str, Tensor]:
        """Probabilities of a batch in host memory, by label, in host memory."""
        with (
            torch.inference_mode(),
            torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype != torch.float32),
        ):
            found = self.model.predict(batch.to(self._device))
            return {name: values.exp().cpu() for name, values in found.items()}

    def requests_per_s(self, batch_size: int) -> float:
        """Requests a second with so many in a call."""
        batches = [
            join([self._samples[(begin + i) % len(self._samples)] for i in range(batch_size)])
            for begin in range(0, len(self._samples), batch_size)
        ]
        if self._device.type == "cuda":
            batches = [batch.pin_memory() for batch in batches]
        self.predict(batches[0])
        num_requests, began = 0, time.monotonic()
        while True:
            for batch in batches:
                self.predict(batch)
                num_requests += batch_size
                if (seconds := time.monotonic() - began) > self._seconds:
                    return num_requests / seconds


def draw_samples(options: argparse.Namespace) -> list[SampleBatch]:
    """Draws requests, each as a batch of one user."""
    draw = np.random.default_rng(0)
    mean = np.log(options.mean) - _SIGMA**2 / 2
    lengths = np.exp(draw.normal(mean, _SIGMA, options.requests)).astype(np.int64).clip(1, options.longest)

    def ids(count: int) -> Tensor:
        return torch.from_numpy(draw.integers(0, options.ids, count))

    samples = []
    for index, length in enumerate(lengths.tolist()):
        count = length + options.candidates
        samples.append(
            SampleBatch(
                sample_ids=torch.tensor([index]),
                context={name: ids(1) for name in SCHEMA.context},
                events={name: ids(count) for name in SCHEMA.events},
                actions={name: ids(length) % 8 for name in SCHEMA.actions},
                history_lengths=torch.tensor([length]),
                target_lengths=torch.tensor([options.candidates]),
                times=None,
                labels={name: torch.zeros(options.candidates) for name in SCHEMA.labels},
                max_tokens=count,
            )
        )
    return samples


def join(samples: Sequence[SampleBatch]) -> SampleBatch:
    """One batch of several."""

    def joined(name: str) -> dict[str, Tensor]:
        columns: list[Mapping[str, Tensor]] = [getattr(sample, name) for sample in samples]
        return {key: torch.cat([column[key] for column in columns]) for key in columns[0]}

    return SampleBatch(
        **{name: torch.cat([getattr(sample, name) for sample in samples])
           for name in ("sample_ids", "history_lengths", "target_lengths")},
        **{name: joined(name) for name in ("context", "events", "actions", "labels")},
        times=None,
        max_tokens=max(sample.max_tokens for sample in samples),
    )  # fmt: skip


def request_of(sample: SampleBatch) -> Request:
    """A batch of one user as a request."""
    [length], [count] = sample.history_lengths.tolist(), sample.target_lengths.tolist()
    one, of_history = torch.tensor([1]), torch.tensor([length])
    of_items = torch.ones(count, dtype=torch.int64)
    features = {name: (ids, one) for name, ids in sample.context.items()}
    features |= {name: (ids[:length], of_history) for name, ids in sample.events.items()}
    features |= {name: (ids, of_history) for name, ids in sample.actions.items()}
    features |= {f"target_{name}": (ids[length:], of_items) for name, ids in sample.events.items()}
    return Request(features=features, items=torch.tensor([count]))


def make_model(options: argparse.Namespace, samples: Sequence[SampleBatch], *, device: Any = "cpu") -> GRM:
    """Makes the model with rows for the ids of all samples."""
    longest = len(SCHEMA.context) + options.longest + options.candidates
    sizes = {"max_length": longest, "given": {"buy": "click"}}
    config = GRMConfig(**_SMALL, **sizes) if options.model == "small" else GRMConfig.preset(options.model, **sizes)
    torch.manual_seed(0)
    model = GRM(config, SCHEMA, optimizer=NoOptimizer(), process_group=LOCAL, device=device)
    with torch.no_grad():
        for sample in samples:
            model.encoder(sample.to(torch.device(device)))  # In training mode, so ids get rows.
    return model


def export_package(model: GRM, folder: Path, options: argparse.Namespace) -> Path:
    """Exports the model, and puts it back to the host."""
    tables = model.encoder.tables
    dense = DenseGRM(model).to(options.device)
    export(
        folder, dense, tables, features=dense.features, longest=dense.longest, device=options.device,
        dtype=options.dtype,
        buckets=[Bucket(users * options.candidates, users, tokens) for users, tokens in options.buckets],
    )  # fmt: skip
    dense.to("cpu")
    return folder


def expect_equal_predictions(
    package: Path, sample: SampleBatch, eager: EagerModel, options: argparse.Namespace
) -> None:
    """
    Raises:
        BenchmarkError: the package predicts something else than the eager model.
    """
    served = Predictor(package).predict(request_of(sample))
    own = eager.predict(sample)
    most = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[options.dtype]
    for name, values in own.items():
        difference = float((served[name] - values.float()).abs().max())
        if not difference <= most:
            raise BenchmarkError(f"{name} of the package differs by {difference:.1e} from the eager model's")


def run_load(
    package: Path, served: ServedRanks, clients: int, log: Path, expected: Mapping[str, Sequence[int]],
    options: argparse.Namespace,
) -> LoadRun:  # fmt: skip
    """Runs clients that wait for their replies."""
    load = Load(
        package, served.addresses, "--clients", str(clients), "--timeout", "60000", log=log, expected=expected,
        seconds=options.seconds,
    )  # fmt: skip
    run = load.finish()
    failed = {status: count for status, count in run.statuses.items() if status != "OK"}
    if failed:
        raise BenchmarkError(f"requests were not answered: {failed}")
    return run


def _users_and_tokens(text: str) -> tuple[int, int]:
    users, _, tokens = text.partition(":")
    if not users.isdecimal() or not tokens.isdecimal() or int(users) < 1 or int(tokens) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not USERS:TOKENS")
    return int(users), int(tokens)


def format_points(points: Sequence[Point]) -> str:
    """A table with a line for each system."""
    rows = []
    for point in points:
        extra = point.extra
        latency = f"{extra['p50_ms']:.2f} / {extra['p99_ms']:.2f}" if "p50_ms" in extra else ""
        wrong = str(extra["num_wrong"]) if "num_wrong" in extra else ""
        system = point.system
        if "requests_per_call" in extra:
            system += f" ({extra['requests_per_call']} per call)"
        ratio = format_ratio(point.ratio, extra["ratio_low"], extra["ratio_high"])
        rows.append([system, f"{point.rate:,.0f}", ratio, latency, wrong])
    return format_table(["system", "requests/s", "over eager", "p50 / p99 ms", "wrong replies"], rows)
