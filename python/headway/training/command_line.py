# SPDX-License-Identifier: Apache-2.0
"""The command ``headway train``: trains by a TOML file, on one rank or many.

Under torchrun, mpirun or srun this process is one rank. Otherwise it starts the ranks on this host, and
passes SIGTERM on to them: they save a checkpoint and end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from headway.checkpoints import TrainingCheckpointError
from headway.cli.one_line_parser import OneLineParser
from headway.comm.initialization import init
from headway.comm.launchers import adopt_launcher_environment
from headway.comm.rank_processes import RankFailedError, run_ranks
from headway.config_files import ConfigError
from headway.data import DataError
from headway.embedding import CheckpointError
from headway.evaluation import LabelQuality
from headway.hybrid import HybridTables
from headway.hybrid.config import TRAINING_OUT
from headway.training.checkpoints import Checkpoints
from headway.training.config import TrainingConfig
from headway.training.progress import TrainingResult, counted
from headway.training.train_step import LossError
from headway.training.trainer import BatchMemoryError, Trainer, format_ranks
from headway.training.training_input import TrainingInput

_DESCRIPTION = "trains a generative recommender; without CONFIG a small one on generated logs"
#: A run may take weeks. A rank that hangs ends by the timeout of its exchanges.
_NO_LIMIT_S = 1e9

#: Errors of settings, data and checkpoints, and those that name their rank. The rank that failed first, and the line
#: that raised, say nothing more.
_TOLD = (ConfigError, DataError, TrainingCheckpointError, CheckpointError, LossError, BatchMemoryError,
         ImportError)  # fmt: skip
_OF_ALL_RANKS = re.compile(
    rf"rank \d+ failed: ({'|'.join(each.__name__ for each in _TOLD)}): (.*) \(at [^()]*\)", re.DOTALL
)
_REMEDIES = "--resume never trains anew, and moves earlier results aside; --out chooses another folder"


@dataclass(frozen=True)
class Job:
    """The work of each rank.

    Attributes:
        config: all settings.
        out: folder of checkpoints and results.
        resume: ``auto``: from the newest checkpoint of ``out`` if there is one; ``never``; or the path of a checkpoint.
        trace: steps to record for Perfetto; None: none.
    """

    config: TrainingConfig
    out: Path
    resume: str
    trace: range | None = None

    def checkpoint(self) -> Path | None:
        """Returns the checkpoint from which the training goes on; None: it begins."""
        if self.resume == "never":
            return None
        if self.resume != "auto":
            return Path(self.resume)
        return Checkpoints(self.out / "checkpoints", keep=0, group=None).latest()


def main(
    argv: Sequence[str],
    *,
    default_config: Path | None = None,
    generate: Callable[[Path], Path] | None = None,
) -> int:
    """Runs the command line; returns the exit status: 0, 1 after an error of the training, 2 for wrong settings.

    Args:
        argv: the arguments.
        default_config: the config of calls without CONFIG, to print.
        generate: writes that config and its data below a folder, and returns the path of the config.
    """
    parser = OneLineParser(prog="headway train", description=_DESCRIPTION)
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="settings; --print-config shows all of them")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change a setting of the file")
    parser.add_argument("--ranks", type=int, help="processes (default: one per GPU, or 4 on CPUs)")
    parser.add_argument("--out", type=Path, default=TRAINING_OUT, help="results (default: %(default)s)")
    parser.add_argument("--resume", default="auto", metavar="auto|never|PATH", help="checkpoint (default: %(default)s)")
    parser.add_argument(
        "--trace", metavar="A:B", help="record steps A to B - 1, counted from 0, in OUT/trace.json, for Perfetto"
    )
    parser.add_argument("--backend", default="headway", help="of the process group (default: %(default)s)")
    parser.add_argument("--print-config", action="store_true", help="print all settings and leave")
    options = parser.parse_args(argv)
    try:
        config = _config_of(options, default_config, generate)
        if options.print_config:
            print(config.toml(), end="")
            return 0
        job = Job(config, options.out, options.resume, _steps_of(options.trace))
        adopt_launcher_environment()
        is_rank = "RANK" in os.environ
        if is_rank and options.ranks:
            raise ConfigError(f"--ranks starts ranks, and this is one of {os.environ.get('WORLD_SIZE')} of a launcher")
        result = _run_as_rank(job, options.backend) if is_rank else _run_here(job, options)
    except (*_TOLD, RankFailedError) as error:
        text = " ".join(str(error).split())
        of_all = _OF_ALL_RANKS.fullmatch(text) if isinstance(error, RankFailedError) else None
        print(f"headway train: {text if of_all is None else of_all[2]}", file=sys.stderr)
        kind = type(error).__name__ if of_all is None else of_all[1]
        return 2 if kind == "ConfigError" else 1
    if result is not None:
        print(format_result(result))
    return 0


def _config_of(
    options: argparse.Namespace, default_config: Path | None, generate: Callable[[Path], Path] | None
) -> TrainingConfig:
    if options.ranks is not None and options.ranks < 1:
        raise ConfigError(f"--ranks must be from 1, not {options.ranks}")
    path = options.config
    if path is None:
        if default_config is None or generate is None:
            raise ConfigError("which CONFIG.toml?")
        path = default_config if options.print_config else generate(options.out)
    return TrainingConfig.load(path, options.set)


def _steps_of(text: str | None) -> range | None:
    """Returns the steps of --trace."""
    if text is None:
        return None
    begin, _, end = text.partition(":")
    if not (begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
        raise ConfigError(f"--trace is A:B with A below B, such as 100:110, not {text}")
    return range(int(begin), int(end))


def _run_as_rank(job: Job, backend: str) -> TrainingResult | None:
    init(backend)
    try:
        result = train(dist.get_rank(), print, job=job)
        return result if dist.get_rank() == 0 else None
    finally:
        dist.destroy_process_group()


def _run_here(job: Job, options: argparse.Namespace) -> TrainingResult:
    uses_cuda = job.config.run.device != "cpu" and torch.cuda.device_count() > 0
    num_ranks = options.ranks or (torch.cuda.device_count() if uses_cuda else 4)
    expect_trainable(job, num_ranks)
    return run_ranks(
        partial(train, job=job),
        num_ranks=num_ranks,
        timeout_s=_NO_LIMIT_S,
        backend=options.backend,
        on_message=print,
        passes_sigterm=True,
    )


def expect_trainable(job: Job, num_ranks: int) -> None:
    """Checks data and checkpoint before ranks start, so that an error comes at once, and once.

    Raises:
        DataError, ConfigError: the data cannot be read, or not by so many ranks.
        TrainingCheckpointError: the checkpoint is of another training.
    """
    opened = TrainingInput(
        job.config, has_own_model=False, rank=0, num_ranks=num_ranks, pin_memory=False, say=lambda line: None
    )
    path = job.checkpoint()
    if path is not None:
        with _with_remedies():
            Checkpoints.manifest(path).expect_same_training(path, job.config, opened.folder.fingerprint)


@contextlib.contextmanager
def _with_remedies() -> Iterator[None]:
    try:
        yield
    except (TrainingCheckpointError, CheckpointError) as error:
        raise TrainingCheckpointError(f"{error}; {_REMEDIES}") from error


def train(rank: int, say: Callable[[str], None], *, job: Job) -> TrainingResult:
    """Trains on one rank.

    Args:
        rank: this rank.
        say: called with lines of progress on rank 0.
        job: what to do.
    """
    os.environ.setdefault("LOCAL_RANK", str(rank))
    trainer = Trainer(job.config, out=job.out, say=say, trace=job.trace)
    if (path := job.checkpoint()) is not None:
        with _with_remedies():
            trainer.resume(path)
        if rank == 0:
            say(f"resumed at step {trainer.step}" + ("" if trainer.num_steps is None else f" of {trainer.num_steps}"))
            if trainer.num_steps is not None and trainer.step >= trainer.num_steps:
                say("all steps are trained: --resume never, or another --out, trains anew")
    if rank == 0:
        samples = counted(trainer.folder.num_rows, "sample")
        say(f"{format_ranks(trainer.num_ranks)} on {trainer.device.type}: {samples}, {_describe_steps(trainer)}")
    try:
        return trainer.run()
    finally:
        for each in trainer.tables:
            if isinstance(each, HybridTables):
                each.disconnect()


def _describe_steps(trainer: Trainer) -> str:
    data = trainer.config.data
    if data.balance == "budget":
        unit = "tokens" if data.budget_unit == "tokens" else "weighted tokens"
        return (
            f"batches of up to {data.budget:,} {unit}" if data.budget else f"batches of a number of {unit} to measure"
        )
    assert trainer.num_steps is not None
    return f"{counted(trainer.num_steps, 'step')} of {data.global_batch}"


def format_result(result: TrainingResult) -> str:
    """Formats the end of a training: duration, quality by label, and where checkpoint and report are."""
    lines = [f"{'stopped' if result.stopped else 'trained'} at step {result.step} after {result.seconds:.1f} s"]
    if result.quality:
        lines.append(format_quality(result.quality))
    if result.checkpoint is not None:
        lines.append(f"checkpoint: {result.checkpoint}")
    if result.report is not None:
        lines.append(f"report: {result.report}")
    return "\n".join(lines)


def format_quality(quality: Mapping[str, LabelQuality]) -> str:
    """Formats metrics by label as a table. GAUC is weighted by impressions."""
    rows: list[tuple[str, ...]] = [
        ("label", "AUC", "GAUC", "by clicks", "unweighted", "normalized entropy", "targets", "positive")
    ]
    for name, of_label in quality.items():
        metrics = (
            of_label.auc,
            of_label.gauc,
            of_label.gauc_by_clicks,
            of_label.gauc_unweighted,
            of_label.normalized_entropy,
        )
        values = ["-" if value is None else f"{value:.4f}" for value in metrics]
        rows.append((name, *values, f"{of_label.num_targets:,}", f"{of_label.num_positive:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    reasons = [f"{name}: {of_label.reason}" for name, of_label in quality.items() if of_label.reason]
    return "\n".join(lines + reasons)
