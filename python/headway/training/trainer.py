# SPDX-License-Identifier: Apache-2.0
"""``Trainer``: trains a model over jagged samples, on one rank or many.

The schedule of a step, for each rank::

    prepared    by ``Pipeline``, while the step before computes: batches on the device, lookups that have begun, and
    counts      = add over ranks (terms of each head in all micro-batches)
    for each micro-batch:
        sums    = model(batch)                     the rest of its lookups
        (last)  prepare the next step              its keys travel during the backward pass
        backward(sum over heads of sums / counts)  gradients of rows go to their owners;
                                                   the last micro-batch adds dense gradients over ranks
    losses      = add over ranks (sums); they must be finite
    clip by the norm over dense and sparse gradients
    update the dense part, which all ranks have, and the rows that this rank owns

Invariants: all ranks take the same steps, also without samples of their own. The samples of a step depend on seed,
epoch and step alone, so a training may resume with another number of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from headway import hybrid
from headway.config_files import ConfigError
from headway.data.budget_reader import Budget, BudgetReader
from headway.data.parquet import DataError
from headway.data.reader import BatchReader, Position, StepBatch
from headway.data.sample_batch import collate
from headway.embedding import HashTableCollection
from headway.evaluation import LabelQuality
from headway.hybrid import HybridTables
from headway.nn.grm import GRM
from headway.parallel.balance import BalancedSteps
from headway.training.checkpoints import Checkpoints, Manifest, set_aside, set_later_aside
from headway.training.config import TrainingConfig, differences, effective
from headway.training.device_memory import is_out_of_memory
from headway.training.pipeline import Pipeline, PreparedStep
from headway.training.progress import (
    Progress,
    TrainingResult,
    Window,
    balance_of,
    counted,
    exchange_seconds,
    figures_of,
    format_place,
    gather,
    server_seconds,
    waits,
)
from headway.training.rank_agreement import expect_same_training
from headway.training.report import read_results, write_report
from headway.training.scoring import score_targets
from headway.training.step_trace import StepTrace
from headway.training.tensorboard import TensorBoard
from headway.training.train_step import LossError, TrainStep, not_finite
from headway.training.trained_tables import expect_mode
from headway.training.training_input import TrainingInput
from headway.training.work_division import WorkDivision

_LENGTHS_TO_NAME = 8
_FEW_STEPS = 100  #: An epoch of fewer steps may teach little.


class BatchMemoryError(RuntimeError):
    """The device has no memory for a batch."""


class Trainer:
    """Trains a model.

    Args:
        config: all settings.
        model: a ``TrainableModel``, equal on all ranks; None: a ``headway.nn.GRM``, the generative recommendation model
            that ``config.model`` describes.
        out: folder for checkpoints, ``results.jsonl`` and ``report.html``; None: nothing is written.
        group: ranks of the training; None: the default group if there is one.
        say: called with each line of progress on rank 0.
        observe: called with each progress on every rank.
        trace: steps to record for Perfetto in ``out``/trace.json, counted from 0; see ``StepTrace``.

    Raises:
        ConfigError: settings contradict each other or the number of ranks.
        DataError: the data cannot be read.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        model: nn.Module | None = None,
        out: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        say: Callable[[str], None] = print,
        observe: Callable[[Progress], None] = lambda progress: None,
        trace: range | None = None,
    ) -> None:
        self.config, self.out = config, None if out is None else Path(out)
        expected = int(os.environ.get("WORLD_SIZE", "1"))
        if group is None and expected > 1 and not dist.is_initialized():
            raise ConfigError(
                f"WORLD_SIZE is {expected}, and there is no process group: call "
                'torch.distributed.init_process_group("headway") before'
            )
        self.group = group or (dist.group.WORLD if dist.is_initialized() else None)
        self.rank = 0 if self.group is None else self.group.rank()
        self.num_ranks = 1 if self.group is None else self.group.size()
        self.device = _device(config.run.device)
        self._say, self._observe = say, observe
        self._input = TrainingInput(
            config,
            has_own_model=model is not None,
            rank=self.rank,
            num_ranks=self.num_ranks,
            pin_memory=self.device.type == "cuda",
            say=say,
        )
        self.folder = self._input.folder
        expect_same_training(config, self._input.fingerprints, self.group)
        torch.manual_seed(config.run.seed)  # All ranks draw the same weights.
        self.model: Any = model
        if model is None:
            self.model = GRM(
                config.model.grm(),
                config.data.schema(),
                optimizer=config.optimizer.of_tables(),
                tables=config.model.tables,
                seed=config.run.seed,
                process_group=self.group,
                device=self.device,
                prioritized=config.run.prioritized_updates,
                make_tables=None if config.mode == "local" else functools.partial(hybrid.connect, config),
            )
        for name in ("forward", "count_terms", "predict"):
            if not callable(getattr(self.model, name, None)):
                raise ConfigError(f"the model has no {name}(): see headway.training.TrainableModel")
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters,
            lr=config.optimizer.lr,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            fused=self.device.type == "cuda",
        )
        try:
            self._train_step = TrainStep(
                self.model,
                optimizer=self.optimizer,
                group=self.group,
                dtype=config.run.dtype or ("bfloat16" if self.device.type == "cuda" else "float32"),
                clip_norm=config.optimizer.clip_norm,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.tables = self._train_step.state.tables
        expect_mode(self.tables, config)
        if trace is not None and self.out is None:
            raise ConfigError("a trace needs a folder: give out")
        self._is_prioritized = self._can_prioritize()
        #: Steps whose updates a lookup may lack; None without parameter servers.
        self._staleness = None if config.mode == "local" else config.most_missing_steps
        if self.device.type == "cuda" and self.num_ranks > 1:
            for collection in self.tables:
                if isinstance(collection, HashTableCollection):
                    collection.time_waits()
        self._traced_steps = trace
        if config.run.tensorboard:
            TensorBoard.expect_installed()
            if self.out is None:
                raise ConfigError("run.tensorboard needs a folder: give --out, or out of Trainer")
        self._tensorboard: TensorBoard | None = None
        self._balanced: BalancedSteps | None = None
        self._busy_s = 0.0  #: Seconds that this rank has computed.
        self._heads: list[str] = []  #: Heads of the model, as count_terms() names them.
        self.step = 0
        self._next = Position()
        self._resumed: Path | None = None  #: The checkpoint from which this training goes on.
        self._has_begun = self._has_stepped = False
        self._got_signal = False  #: This rank got SIGTERM; the others learn of it when they prepare a step.
        self._is_stopped = False  #: Some rank got SIGTERM, and all have stopped.
        self._division = WorkDivision(
            config,
            self.model,
            self._train_step,
            longest=self._input.longest,
            device=self.device,
            group=self.group,
            say=say if self.rank == 0 else lambda line: None,
        )
        self._checkpoints = (
            None
            if self.out is None
            else Checkpoints(self.out / "checkpoints", keep=config.checkpoint.keep, group=self.group)
        )

    def _can_prioritize(self) -> bool:
        """Whether rows are read ahead of updates. Says why not, if it was wanted."""
        config = self.config
        if not config.run.prioritized_updates or self.num_ranks == 1:
            return False
        for name in ("read_ahead", "start_lookups"):
            if not callable(getattr(self.model, name, None)):
                raise ConfigError(f"run.prioritized_updates needs a model with {name}(): see TrainableModel")
        if config.optimizer.clip_norm or config.run.dtype == "float16":
            what = "optimizer.clip_norm" if config.optimizer.clip_norm else "float16"
            if self.rank == 0:
                self._say(f"updates are not prioritized: {what} needs all gradients before the first update")
            return False
        return True

    @functools.cached_property
    def num_steps(self) -> int | None:
        """Steps of all epochs, at most ``run.max_steps``. None without that limit if batches have a budget."""
        most = self.config.run.max_steps or None
        if self.config.data.balance == "budget":
            return most
        steps = self.config.run.epochs * self._input.steps_per_epoch()
        return steps if most is None else min(steps, most)

    def run(self) -> TrainingResult:
        """Trains from the present step to the end, evaluates, and saves a checkpoint.

        SIGTERM ends it with a checkpoint, after the present step and those that are prepared
        (``config.run.steps_ahead``).

        Raises:
            LossError: a loss is not finite. Nothing is updated in that step.
        """
        begin = time.monotonic()
        losses: Mapping[str, float] = {}
        self._got_signal = self._is_stopped = False
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._stopping_on_sigterm())  # A second signal must not interrupt the save.
            self._make_room()
            if self.config.run.tensorboard and self.rank == 0 and self.out is not None:
                board = TensorBoard(self.out / "tensorboard", step=self.step)
                self._tensorboard = stack.enter_context(contextlib.closing(board))
            for progress in self._train(begin):
                losses = progress.losses
                self._report(progress)
            checkpoint = self._saved() or (self.save() if self._checkpoints is not None else None)
            report = self._write_report()  # An error of the evaluation does not take it.
            quality: dict[str, LabelQuality] = {}
            if self.config.data.evaluation and not self._is_stopped:
                quality = self._evaluate_saved(checkpoint)
                self._report_quality(quality)
                report = report and self._write_report()
        return TrainingResult(
            report=report,
            step=self.step,
            losses=losses,
            quality=quality,
            checkpoint=checkpoint,
            stopped=self._is_stopped,
            seconds=time.monotonic() - begin,
        )

    def _make_room(self) -> None:
        """Moves what is in the folder, and not of the training that goes on here, to a folder aside."""
        is_first_call, self._has_begun = not self._has_begun, True
        if not is_first_call or self.rank != 0 or self.out is None or self._checkpoints is None:
            return
        if self._resumed is None and self.step > 0:  # Whoever set the step knows what is in the folder.
            return
        is_here = self._resumed is not None and self._resumed.parent.resolve() == self._checkpoints.folder.resolve()
        if not is_here:
            if (aside := set_aside(self.out)) is not None:
                self._say(f"checkpoints and results of an earlier training are in {aside} now")
        elif (aside := set_later_aside(self._checkpoints, self.out, self.step)) is not None:
            self._say(f"checkpoints and results after step {self.step} are in {aside} now")

    def _saved(self) -> Path | None:
        """Returns the checkpoint in this folder that has the present step already; None: no such one."""
        if self._resumed is None or self._checkpoints is None:
            return None
        path = self._checkpoints.path_of(self.step)
        return path if path.resolve() == self._resumed.resolve() else None

    def evaluate(self) -> dict[str, LabelQuality]:
        """Scores the evaluation data without inserting rows; returns the quality of each label, over all ranks.

        Raises:
            ValueError: the training has no evaluation data, or predictions are wrong.
        """
        scores = score_targets(
            self.model,
            (step.batches[0] for step in self._input.evaluation_reader()),
            labels=self.config.data.labels,
            user=self.config.data.group,
            device=self.device,
            autocast=self._train_step.autocast(),
        )
        return scores.quality(self.group)

    def _evaluate_saved(self, checkpoint: Path | None) -> dict[str, LabelQuality]:
        """Evaluates after a training that was saved in ``checkpoint``."""
        try:
            return self.evaluate()
        except DataError as error:
            place = "" if checkpoint is None else f"; step {self.step} is saved in {checkpoint}"
            raise DataError(f"evaluation: {error}{place}") from error

    # Steps

    def _train(self, begin: float) -> Iterator[Progress]:
        """Trains; yields progress every ``log_every`` steps, and at the end."""
        self.model.train()
        without_samples = collate([], self.config.data.schema()).to(self.device)
        try:
            self._train_step.settle_buckets(without_samples, seed=self.config.run.seed, step=self.step)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        budget = self._division.budget_of_rank()
        if budget is not None and self.rank == 0:
            self._say_steps(budget)
        reader = self._input.training_reader(self._next, budget)
        steps = iter(reader)
        left = None if self.num_steps is None else max(self.num_steps - self.step, 0)
        of_rank = itertools.islice(steps, left) if isinstance(reader, BatchReader) else steps
        self._balanced = self._division.balanced(steps, start=self._next, num_steps=left, busy_s=lambda: self._busy_s)
        pipeline = Pipeline(
            self._balanced or of_rank,
            device=self.device,
            count=self._count,
            start_lookups=getattr(self.model, "start_lookups", None),
            group=self.group,
            depth=max(self.config.run.steps_ahead, 2 if self._is_prioritized else 0, self._staleness or 0),
            read_ahead=self._read_ahead if self._is_prioritized else None,
            most_lookups_ahead=self._staleness,
            looks_up_on_host=self._staleness is not None,
        )
        window = self._window()
        epoch = self._next.epoch
        trace = StepTrace(self._traced_steps, self.out, self.group)
        with (
            contextlib.closing(steps),  # type: ignore[type-var]
            contextlib.closing(self._balanced) if self._balanced is not None else contextlib.nullcontext(),
            contextlib.closing(pipeline),
            trace,
            contextlib.ExitStack() as stack,
        ):
            for collection in self.tables:
                stack.callback(collection.forget_ahead)  # After an error; else nothing is left.
            while self.num_steps is None or self.step < self.num_steps:
                trace.move_to(self.step)
                with record_function("wait for the step"):
                    prepared = pipeline.next()
                if prepared is None:
                    break
                *_, num_samples, num_stops = prepared.totals
                self._is_stopped = num_stops > 0
                if self._is_stopped:
                    break
                epoch = prepared.host.position.epoch
                if num_samples == 0 and isinstance(reader, BudgetReader):  # No rank has samples left.
                    reader.end_epoch(epoch)
                    self._pass_over(prepared)
                    continue
                began, reduction_s = time.monotonic(), self._train_step.reduction_s
                exchange_s = exchange_seconds(self.group) if self._balanced is not None else 0.0
                advance = functools.partial(
                    pipeline.advance,
                    reads_ahead=self._steps_to_save() != 0,
                    steps_to_save=None if self._staleness is None else self._steps_to_save(),
                )
                self._step(prepared, window, advance)
                waited = pipeline.take_waits()
                window.input_s += waited.for_input_s
                window.reduction_s += waited.for_ranks_s + self._train_step.reduction_s - reduction_s
                if self._balanced is not None:  # Waits for others, and for input, are not computing.
                    waited_s = self._train_step.reduction_s - reduction_s + waited.for_input_s
                    waited_s += exchange_seconds(self.group) - exchange_s
                    self._busy_s += 0.0 if math.isnan(waited_s) else max(time.monotonic() - began - waited_s, 0.0)
                if self.step % self.config.run.log_every == 0:
                    yield self._progress(window, epoch, begin)
                    window = self._window()
                every = self.config.checkpoint.every
                if every and self.step % every == 0 and self.step != self.num_steps and self._checkpoints is not None:
                    self.save()
        for collection in self.tables:
            collection.drain()
        if trace.path is not None:
            self._say(f"trace: {trace.path}")
        elif self._traced_steps is not None and not trace.has_begun and self.rank == 0:
            wanted = f"{self._traced_steps.start}:{self._traced_steps.stop}"
            self._say(f"no step of the trace {wanted} was trained: steps count from 0, and {self.step} are made")
        if window.counts:  # The last steps.
            yield self._progress(window, epoch, begin)

    def _say_steps(self, budget: Budget) -> None:
        """Says about how many steps an epoch has, since the budget of a rank does not tell."""
        of_batch = max(budget.tokens / self._input.mean_cost(budget), 1.0)
        samples = min(round(of_batch * self.config.data.micro_batches * self.num_ranks), self.folder.num_rows)
        steps = max(1, round(self.folder.num_rows / samples))
        advice = "" if steps >= _FEW_STEPS else ": few to learn from; a smaller data.budget makes more"
        self._say(f"about {counted(samples, 'sample')} a step, {counted(steps, 'step')} an epoch{advice}")

    def _steps_to_save(self) -> int | None:
        """Returns the number of steps between the present one and the next checkpoint or the end; None: not known.

        Rows of later steps are not read before: tables would have counted lookups of steps that have not begun.
        """
        every, done = self.config.checkpoint.every, self.step + 1
        left = [] if self.num_steps is None else [max(self.num_steps - done, 0)]
        if every and self._checkpoints is not None:
            left.append(-done % every)
        return min(left, default=None)

    def _pass_over(self, prepared: PreparedStep) -> None:
        """Ends the lookups of a step that is not made."""
        for lookups in prepared.lookups:
            for collection in self.tables:
                if isinstance(collection, HybridTables) and lookups is not None:
                    collection.pass_over(lookups)

    def _read_ahead(self, totals: Sequence[int], lookups: Sequence[Any]) -> None:
        *_, num_samples, num_stops = totals
        if num_samples > 0 and num_stops == 0:
            self.model.read_ahead(lookups)

    def _count(self, step: StepBatch) -> list[int]:
        """Returns what ranks add up before a step: terms of each head, tokens, samples, and 1 for a rank that stops."""
        terms = [self.model.count_terms(batch) for batch in step.batches]
        num_context = len(self.config.data.context)
        tokens = sum(batch.num_events + num_context * batch.num_samples for batch in step.batches)
        samples = sum(batch.num_samples for batch in step.batches)
        self._heads = list(terms[0])
        of_heads = [sum(of_batch[name] for of_batch in terms) for name in self._heads]
        return [*of_heads, tokens, samples, int(self._got_signal)]

    def _step(self, prepared: PreparedStep, window: Window, prepare_next: Callable[[], None]) -> None:
        step = prepared.host
        *of_heads, tokens, _, _ = prepared.totals
        counts = dict(zip(self._heads, of_heads, strict=True))
        self._set_rates()
        options: list[dict[str, Any]] = [{"seed": self.config.run.seed, "step": self.step} for _ in step.batches]
        for of_batch, lookups in zip(options, prepared.lookups, strict=True):
            if lookups is not None:
                of_batch["lookups"] = lookups

        def advance() -> None:
            with record_function("prepare the next step"):
                prepare_next()

        try:
            losses = self._train_step.backward(prepared.batches, counts, options=options, before_last_backward=advance)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            place = f"{self._place(step)}, rank {self.rank}"
            raise BatchMemoryError(f"{place}: {_describe_batches(step)}; {error}") from error
        self._expect_finite(losses, step)
        if self.num_ranks == 1 and not self._has_stepped and (unused := self._train_step.without_gradient()):
            self._say(f"no loss depends on the parameters {', '.join(unused)}: several ranks would refuse the model")
        self._has_stepped = True
        self._train_step.update()
        self.step += 1
        self._next = step.next
        window.add(losses, counts, tokens=tokens)
        for batch in step.batches:
            window.truncated += batch.num_truncated
            window.flops += self.model.flops(batch, backward=True) if hasattr(self.model, "flops") else math.nan

    def _set_rates(self) -> None:
        warmup = self.config.optimizer.warmup_steps
        factor = min(1.0, (self.step + 1) / warmup) if warmup else 1.0
        if self.config.optimizer.decay == "cosine" and self.num_steps is not None:
            factor *= 0.5 * (1 + math.cos(math.pi * self.step / self.num_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.lr * factor
        for collection in self.tables:
            for group in collection.optimizer.param_groups:
                group["lr"] = self.config.optimizer.table_lr * factor

    def _expect_finite(self, sums: Mapping[str, float], step: StepBatch) -> None:
        wrong = not_finite(sums)
        if wrong is None:
            return
        self._train_step.state.skip_update()
        samples = [each for batch in step.batches for each in batch.sample_ids.tolist()]
        place = ""
        if self.out is not None:
            path = self.out / f"not_finite_step_{self.step + 1}_rank_{self.rank}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"losses": {k: str(v) for k, v in sums.items()}, "samples": samples}))
            place = f"; its samples are in {path}"
        raise LossError(f"{self._place(step)}: the loss of {wrong} is {sums[wrong]}{place}")

    def _place(self, step: StepBatch) -> str:
        """Names the step that is being made, as lines of progress count."""
        return format_place(self.step + 1, self.num_steps, step.position.epoch, self.config.run.epochs)

    # Checkpoints

    def save(self) -> Path:
        """Saves a checkpoint. All ranks call it.

        Raises:
            ValueError: the trainer has no folder.
        """
        if self._checkpoints is None:
            raise ValueError("a trainer without a folder saves no checkpoints")
        manifest = Manifest(
            step=self.step,
            next=self._whole_position(),
            num_ranks=self.num_ranks,
            fingerprint=self.folder.fingerprint,
            config=self.config.as_dict(),
            square_weight=self._division.square_weight,
            budget=self._division.budget,
            weight_exponent=self._division.weight_exponent,
        )
        return self._checkpoints.save(manifest, self._train_step.state.dense(), self.tables)

    def _whole_position(self) -> Position:
        """Returns where a resumed training starts. With a budget each rank counts the rows of its own streams."""
        if not self._next.taken or self.num_ranks == 1:
            return self._next
        taken = torch.tensor(self._next.taken, device=self.device)
        own = torch.arange(len(taken), device=self.device) % self.num_ranks == self.rank
        taken = torch.where(own, taken, 0)
        dist.all_reduce(taken, group=self.group)
        return replace(self._next, taken=tuple(taken.tolist()))

    def resume(self, path: Path | None = None) -> bool:
        """Continues from a checkpoint that any number of ranks wrote. All ranks call it.

        Args:
            path: the checkpoint; None: the newest one of ``out``.
        Returns:
            False if there is none.
        Raises:
            TrainingCheckpointError: it cannot be read, or model, data or seed differ; the message says how.
        """
        if path is None:
            path = None if self._checkpoints is None else self._checkpoints.latest()
        if path is None:
            return False
        manifest = Checkpoints.manifest(path)
        manifest.expect_same_training(path, self.config, self.folder.fingerprint)
        before, now = effective(manifest.config), effective(self.config.as_dict())
        changed = [str(each) for each in differences(before, now, sections=("data", "model", "optimizer", "run"))]
        if changed and self.rank == 0:
            self._say(f"settings that differ from those of {path.name}: {'; '.join(changed)}")
        self._train_step.state.load(path)
        self.step, self._next, self._resumed = manifest.step, manifest.next, path
        self._division.take_over(
            square_weight=manifest.square_weight, weight_exponent=manifest.weight_exponent, budget=manifest.budget
        )
        return True

    @contextlib.contextmanager
    def _stopping_on_sigterm(self) -> Iterator[None]:
        def stop(number: int, frame: Any) -> None:
            self._got_signal = True

        try:
            before = signal.signal(signal.SIGTERM, stop)
        except ValueError:  # Not the main thread: the caller handles signals.
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    # Reports

    def _window(self) -> Window:
        return Window(
            begin_exchange_s=exchange_seconds(self.group, self.tables),
            begin_server_s=server_seconds(self.tables),
            begin_busy_s=self._ranks_busy_s(),
        )

    def _ranks_busy_s(self) -> list[float]:
        """Returns the seconds that each rank has computed; empty if samples do not move, and on CUDA."""
        return [] if self._balanced is None or self.device.type == "cuda" else self._balanced.busy_s

    def _progress(self, window: Window, epoch: int, begin: float) -> Progress:
        of_ranks = gather(figures_of(window, self.tables, self.group), self.group, self.device)
        seconds = max(time.monotonic() - window.begin, 1e-9)
        flops = window.flops * self.num_ranks / seconds  # Other ranks have about as many.
        return Progress(
            step=self.step,
            num_steps=self.num_steps,
            epoch=epoch,
            num_epochs=self.config.run.epochs,
            losses=window.means(),
            tokens_per_s=window.tokens / seconds,
            input_wait=of_ranks[0].input_wait,
            **waits(of_ranks, self.device),
            rows=int(sum(each.rows for each in of_ranks)),
            evictions=int(sum(each.evictions for each in of_ranks)),
            truncated=int(sum(each.truncated for each in of_ranks)),
            skipped_steps=self._train_step.state.scaler.num_skipped,
            seconds=time.monotonic() - begin,
            flops_per_s=None if math.isnan(flops) else flops,
            balance=None
            if self._balanced is None
            else balance_of(self._balanced.take_spreads(), window.begin_busy_s, self._ranks_busy_s()),
            collision_share=sum(each.collisions for each in of_ranks)
            / max(sum(each.keys_ahead for each in of_ranks), 1)
            if self._is_prioritized
            else None,
            server_wait=None if self._staleness is None else sum(each.server_wait for each in of_ranks) / len(of_ranks),
            staleness=None if self._staleness is None else of_ranks[0].staleness,
        )

    def _report(self, progress: Progress) -> None:
        self._observe(progress)
        if self.rank == 0:
            self._say(progress.line())
            if self._tensorboard is not None:
                self._tensorboard.add_progress(progress)
            self._write({"kind": "progress"} | vars(progress))

    def _report_quality(self, quality: Mapping[str, LabelQuality]) -> None:
        """Writes the quality of each label, unless the last line about it says the same."""
        if self.rank != 0 or self.out is None or not quality:
            return
        path = self.out / "results.jsonl"
        before = read_results(path).quality if path.exists() else {}
        rows = {
            name: {"kind": "quality", "label": name, "step": self.step} | of_label._asdict()
            for name, of_label in quality.items()
        }
        if all(before.get(name) == row for name, row in rows.items()):  # A finished training was started again.
            return
        if self._tensorboard is not None:
            self._tensorboard.add_quality(quality, self.step)
        for row in rows.values():
            self._write(row)

    def _write_report(self) -> Path | None:
        if self.rank != 0 or self.out is None or not (self.out / "results.jsonl").exists():
            return None
        try:
            return write_report(self.config, self.out, ranks=f"{format_ranks(self.num_ranks)}, {self.device.type}")
        except (ImportError, OSError) as error:  # The training itself has succeeded.
            self._say(f"no report: {' '.join(str(error).split())}")
            return None

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.rank == 0 and self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(_of_json(row), allow_nan=False) + "\n")


def _of_json(value: Any) -> Any:
    """Returns a value as JSON has it: numbers that are not finite are None."""
    if isinstance(value, Mapping):
        return {name: _of_json(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe_batches(step: StepBatch) -> str:
    """Describes the batches of a step that a device had no memory for."""
    num_context = len(step.batches[0].context)
    of_batches = [batch.event_lengths + num_context for batch in step.batches]
    largest = max(of_batches, key=lambda lengths: int(lengths.sum()))
    longest = ", ".join(f"{length:,}" for length in largest.sort(descending=True).values[:_LENGTHS_TO_NAME].tolist())
    return (
        f"no memory for {counted(len(largest), 'sample')} of {counted(int(largest.sum()), 'token')}, the longest of "
        f"{longest}: lower data.budget or data.global_batch, or raise data.micro_batches"
    )


def format_ranks(num_ranks: int) -> str:
    return counted(num_ranks, "rank")


def _device(name: str) -> torch.device:
    if name == "cpu" or (not name and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("run.device is cuda, and torch finds no GPU")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
