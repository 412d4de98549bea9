# SPDX-License-Identifier: Apache-2.0
"""``TrainingConfig``: all settings of a training, from TOML.

Each section of the file is a dataclass below. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from headway.config_files import ConfigError, build_config, read_toml
from headway.data.order import Order
from headway.data.parquet import OnBadFile, TooLong
from headway.data.reader import NUM_STREAMS
from headway.data.schema import SampleSchema
from headway.embedding import Adagrad, Adam, Optimizer, RowWiseAdagrad, RowWiseAdam, Sgd
from headway.hybrid.config import CheckpointsConfig, HybridConfig, Mode
from headway.nn.config import Recompute
from headway.nn.grm import GRMConfig, label_chains
from headway.parallel.balance.plan import BalancePlan, Planner

DEFAULT_BATCH = 64
#: Settings above all sections, and sections, that mode ``local`` does not use.
_OF_SERVERS = {each.name for each in fields(HybridConfig)} - {"mode"}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Folders of samples, and the way they are read.

    Attributes:
        train: folder of Parquet files.
        evaluation: folder to evaluate on; empty: none.
        context, events, actions, labels, time, group: columns; see ``headway.data.SampleSchema``. An empty ``time`` or
            ``group`` means that there is none.
        order: ``shuffled``, or ``time``: the order of the files.
        balance: how work is divided among ranks. ``none``: a step has ``global_batch`` samples, and each rank computes
            those that it reads. ``budget``: each rank fills its batches up to ``budget``, so they take about the same
            time; see ``headway.data.BudgetReader``. ``fixed``, ``variable``: the samples of a step move between ranks,
            so that all have about the same work; with ``fixed`` all get as many, +-1. See ``headway.parallel.balance``.
        scope: ``local``: no sample moves between ranks. ``global``: samples move, as ``fixed`` and ``variable`` need.
            With ``budget`` a step then has one budget over all ranks, and does not depend on their number.
        planner: with ``global``: ``greedy``, ``zigzag`` (of ``fixed``) or ``segments`` (of ``variable``); see
            ``headway.ops.plan_batches``.
        weight_model: with ``fixed`` and ``variable``: a sample of L tokens weighs L + ``square_weight`` L^2
            (``square``), or L^``weight_exponent`` (``power``).
        max_tokens: with ``global``: most tokens of a micro-batch of a rank; 0: no limit.
        global_batch: samples of a step, over all ranks; not with a budget. Default: ``DEFAULT_BATCH``.
        budget: most tokens of a micro-batch of a rank, contextual ones included; 0: measured on the device before the
            first step (``headway.training.budget_tuning``). With ``global``: most tokens of a step over all ranks.
        budget_memory: largest part of the device's memory that a measured budget may use.
        budget_unit: ``tokens``, or ``weight``: a sample of L tokens counts as L + ``square_weight`` L^2.
        square_weight, weight_exponent: cost of attention over that of the rest, per token, and the power of a length;
            0: measured on the device before the first step.
        micro_batches: parts into which each rank divides its samples of a step.
        num_streams: virtual streams of an epoch; at least as many as ranks.
        read_ahead: steps in memory beside the one in use.
        too_long: a sample with more tokens than ``model.max_length`` is an error (``raise``), or loses its oldest
            events (``truncate_oldest``). With a model of one's own only ``truncate_oldest`` looks at that number.
        on_bad_file: ``raise``, or ``skip``: leave out files whose footer cannot be read or lacks a column.
    """

    train: str
    evaluation: str = ""
    context: tuple[str, ...] = ()
    events: tuple[str, ...]
    actions: tuple[str, ...] = ()
    labels: tuple[str, ...]
    time: str = "time"
    group: str = ""
    order: Order = "shuffled"
    balance: Literal["none", "budget", "fixed", "variable"] = "none"
    scope: Literal["local", "global"] = "local"
    planner: Planner = "greedy"
    weight_model: Literal["square", "power"] = "square"
    max_tokens: int = 0
    global_batch: int | None = None
    budget: int = 0
    budget_memory: float = 0.9
    budget_unit: Literal["tokens", "weight"] = "tokens"
    square_weight: float = 0.0
    weight_exponent: float = 0.0
    micro_batches: int = 1
    num_streams: int = NUM_STREAMS
    read_ahead: int = 2
    too_long: TooLong = "raise"
    on_bad_file: OnBadFile = "raise"

    def __post_init__(self) -> None:
        if self.balance != "budget" and self.global_batch is None:
            object.__setattr__(self, "global_batch", DEFAULT_BATCH)

    @property
    def moves_samples(self) -> bool:
        """Whether samples move between ranks before a step."""
        return self.scope == "global"

    def schema(self) -> SampleSchema:
        try:
            return SampleSchema(
                context=self.context,
                events=self.events,
                actions=self.actions,
                labels=self.labels,
                time=self.time or None,
                group=self.group or None,
            )
        except ValueError as error:
            raise ConfigError(f"[data]: {error}") from error


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a GRM, the generative recommendation model of ``headway.nn``.

    ``headway.nn.GRMConfig`` explains the fields that are not below. A number that is not set is that of the preset, or
    the default of ``GRMConfig``.

    Attributes:
        preset: ``grm_4g`` or ``grm_110g``; empty: a small model.
        dimension_factor: multiplies ``embedding_dim``, also that of the preset.
        tables: feature -> table, for features that share one.
        given: label -> the label on which its probability is conditional, such as buy -> click.
    """

    preset: str = ""
    dimension_factor: int = 1
    dim: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    head_dim: int | None = None
    max_length: int | None = None
    embedding_dim: int | None = None
    num_experts: int | None = None
    top_k: int | None = None
    expert_hidden: int | None = None
    position_bias: bool | None = None
    num_time_buckets: int | None = None
    dropout: float | None = None
    recompute: Recompute | None = None
    wide: bool | None = None
    deep: tuple[int, ...] | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)

    def grm(self) -> GRMConfig:
        """Returns the sizes.

        Raises:
            ConfigError: there is no such preset, or a size is out of range.
        """
        names = {each.name for each in fields(GRMConfig)} & {each.name for each in fields(self)} - {"given"}
        changes = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        try:
            base = GRMConfig.preset(self.preset) if self.preset else GRMConfig()
        except ValueError as error:
            raise ConfigError(f"[model]: {error}") from error
        embedding_dim = changes.pop("embedding_dim", base.embedding_dim) * self.dimension_factor
        try:
            return replace(base, **changes, embedding_dim=embedding_dim, given=dict(self.given))
        except ValueError as error:
            raise ConfigError(f"model.{error}") from error

    def default_of(self, name: str) -> tuple[Any, str]:
        """Returns the value of a size that is not set, and its source as text."""
        sizes = self.grm()
        value = sizes.embedding_dim // self.dimension_factor if name == "embedding_dim" else getattr(sizes, name)
        return _plain(value), f"preset {self.preset}" if self.preset else "default"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam for the dense part, and an optimizer for the tables.

    Attributes:
        lr, table_lr: learning rates.
        table_optimizer: ``adam``, ``row_wise_adam``, ``adagrad``, ``row_wise_adagrad`` or ``sgd``.
        betas: of Adam, for both.
        weight_decay: of the dense part, decoupled.
        clip_norm: largest norm of all gradients together; 0: no limit.
        warmup_steps: steps over which both rates grow from 0.
        decay: ``none``, or ``cosine``: both rates fall to 0 at the last step of the run.
    """

    lr: float = 1e-3
    table_lr: float = 1e-3
    table_optimizer: Literal["adam", "row_wise_adam", "adagrad", "row_wise_adagrad", "sgd"] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    warmup_steps: int = 0
    decay: Literal["none", "cosine"] = "none"

    def of_tables(self) -> Optimizer:
        """Returns the optimizer of the tables."""
        match self.table_optimizer:
            case "adam":
                return Adam(lr=self.table_lr, betas=self.betas)
            case "row_wise_adam":
                return RowWiseAdam(lr=self.table_lr, betas=self.betas)
            case "adagrad":
                return Adagrad(lr=self.table_lr)
            case "row_wise_adagrad":
                return RowWiseAdagrad(lr=self.table_lr)
            case "sgd":
                return Sgd(lr=self.table_lr)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The run itself.

    Attributes:
        epochs: passes over the data.
        max_steps: limit of steps over all epochs; 0: no limit.
        seed: seed of weights, order and dropout.
        device: ``cpu`` or ``cuda``; empty: CUDA if there is a device.
        dtype: of the dense part: ``float32``, or ``bfloat16`` or ``float16`` by autocast; empty: bfloat16 on CUDA, else
            float32. With float16 losses are scaled; see ``headway.training.LossScaler``.
        log_every: steps between two lines.
        steps_ahead: steps whose batches are copied, and whose lookups begin, before they are due; 0: none. Results do
            not depend on it; see ``headway.training.Pipeline``. With mode ``hybrid`` at least ``staleness`` steps are
            prepared, and as many lookups begin.
        prioritized_updates: with several ranks, read the rows of the next step while the present one computes, except
            those that it updates, which go first afterwards. Results have the same bits. ``steps_ahead`` is then at
            least 2. Without effect with ``clip_norm`` and float16.
        tensorboard: write the figures of each line to the folder ``tensorboard`` of the output, too.
    """

    epochs: int = 1
    max_steps: int = 0
    seed: int = 0
    device: Literal["", "cpu", "cuda"] = ""
    dtype: Literal["", "float32", "bfloat16", "float16"] = ""
    log_every: int = 10
    steps_ahead: int = 1
    prioritized_updates: bool = False
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints.

    Attributes:
        every: steps between two of them; 0: one at the end alone.
        keep: newest ones that are kept; 0: all.
    """

    every: int = 0
    keep: int = 2


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(HybridConfig):
    """All settings. Each attribute is a section of the file, but ``mode``, ``staleness``, ``order`` and ``combine``.

    Attributes:
        mode: ``local``: tables are on the ranks. ``sync`` and ``hybrid``: on parameter servers; see ``HybridConfig``,
            which has the settings for them.
    """

    mode: Mode = "local"
    data: DataConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @classmethod
    def load(cls, path: str | Path, changes: Sequence[str] = ()) -> TrainingConfig:
        """Reads a TOML file.

        Args:
            path: the file. Folders in it are relative to it.
            changes: settings such as ``optimizer.lr=0.01``, which replace those of the file. Values are TOML, or text.
                Folders in them are relative to the current folder.
        Raises:
            ConfigError: the file cannot be read, or a setting is wrong. The message names file and key.
        """
        path = Path(path)
        values = read_toml(path)
        for change in changes:
            _apply(values, change)
            for name in ("train", "evaluation"):
                if change.partition("=")[0].strip() == f"data.{name}" and (folder := values["data"][name]):
                    values["data"][name] = str(Path(str(folder)).resolve())
        try:
            config = cls.of(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        return config.relative_to(path.parent)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Makes a config from nested dictionaries.

        Raises:
            ConfigError: a setting is wrong.
        """
        config = super().of(values)
        config._check()
        return config

    def relative_to(self, folder: Path) -> TrainingConfig:
        """Returns the config with folders that are relative to ``folder`` made absolute."""
        values = self.as_dict()
        for name in ("train", "evaluation"):
            if values["data"][name]:
                values["data"][name] = str((folder / values["data"][name]).resolve())
        return TrainingConfig.of(values)

    def as_dict(self) -> dict[str, Any]:
        """Returns nested dictionaries, as in a TOML file. Settings without a value are left out."""
        plain: dict[str, Any] = _plain(self)
        return plain

    def toml(self) -> str:
        """Returns the text of a file with all settings.

        Sizes of the model that are not set are comments with their value. With mode ``local`` settings of parameter
        servers are left out unless they are set.
        """
        lines = []
        for section in fields(self):
            part = getattr(self, section.name)
            if self.mode == "local" and section.name in _OF_SERVERS and part == _default(type(self), section.name):
                continue
            if not is_dataclass(part):
                lines.append(f"{section.name} = {json.dumps(part)}")
                continue
            lines += ["", f"[{section.name}]"]
            for each in fields(part):
                value = _plain(getattr(part, each.name))
                if isinstance(value, dict):
                    inner = ", ".join(f"{json.dumps(name)} = {json.dumps(of)}" for name, of in value.items())
                    lines.append(f"{each.name} = {{{inner}}}")
                else:
                    lines.append(self._line(part, each.name, value))
        return "\n".join(lines) + "\n"

    def _line(self, part: Any, name: str, value: Any) -> str:
        if value is not None:
            return f"{name} = {json.dumps(value)}"
        if part is not self.model:
            return f"# {name} is not set"
        size, source = self.model.default_of(name)
        return f"# {name} = {json.dumps(size)} ({source})"

    def _check(self) -> None:
        self.data.schema()
        self._check_balance()
        self._check_mode()
        self._check_model()
        limits = {
            1: ("data.micro_batches", "data.num_streams", "data.read_ahead", "run.epochs",
                "run.log_every", "model.dimension_factor"),
            0: ("optimizer.clip_norm", "optimizer.warmup_steps", "optimizer.weight_decay", "optimizer.lr",
                "optimizer.table_lr", "run.max_steps", "run.seed", "run.steps_ahead", "checkpoint.every",
                "checkpoint.keep", "data.square_weight", "data.weight_exponent", "data.max_tokens"),
        }  # fmt: skip
        for least, keys in limits.items():
            for key in keys:
                section, name = key.split(".")
                _expect_from(least, key, getattr(getattr(self, section), name))
        if self.run.seed >= 1 << 63:
            raise ConfigError(f"run.seed must be below 2^63, not {self.run.seed}")
        if not all(0 <= beta < 1 for beta in self.optimizer.betas):
            raise ConfigError(f"optimizer.betas must be from 0 to below 1, not {list(self.optimizer.betas)}")

    def _check_model(self) -> None:
        sizes = self.model.grm()
        try:
            label_chains(self.data.labels, self.model.given)
        except ValueError as error:
            raise ConfigError(f"model.{error}") from error
        features = (*self.data.context, *self.data.events, *self.data.actions)
        for name, table in self.model.tables.items():
            if name not in features or not table:
                raise ConfigError(
                    f"model.tables has the table {table!r} for {name}; it has names of tables for some of the features "
                    f"{', '.join(features)}"
                )
        least = len(self.data.context) + 1
        if sizes.max_length < least:
            raise ConfigError(
                f"model.max_length must be at least {least} for the {least - 1} features of data.context and a target, "
                f"not {sizes.max_length}"
            )

    def _check_mode(self) -> None:
        """Refuses what tables on parameter servers cannot do."""
        for name, instead in (("folder", "--out"), ("every_steps", "checkpoint.every"), ("keep", "checkpoint.keep")):
            if getattr(self.checkpoints, name) != _default(CheckpointsConfig, name):
                raise ConfigError(f"checkpoints.{name} is for scripts of headway.hybrid: use {instead}")
        if self.mode == "local":
            return
        if self.mode == "async":
            raise ConfigError(
                'mode = "async" is for scripts of headway.hybrid: headway train has a synchronous dense model, whose '
                "ranks make the same steps"
            )
        if self.most_small_rows:
            raise ConfigError(
                f"sync_rows = {self.sync_rows} is for scripts of headway.hybrid: tables of headway train have no "
                "max_rows"
            )
        reasons = {
            "optimizer.clip_norm": "the norm of all gradients is not known before servers have added them",
            "run.prioritized_updates": "servers read and update rows, and have no order for it",
            "data.micro_batches": "a step has one lookup of each rank",
            "workers.addresses": "the trainer reads ids itself, so embedding workers cannot keep them away from it",
        }
        for key, reason in reasons.items():
            section, name = key.split(".")
            part = getattr(self, section)
            if (value := getattr(part, name)) != _default(type(part), name):
                raise ConfigError(f'{key} = {json.dumps(value)} needs mode = "local", not "{self.mode}": {reason}')

    def _check_balance(self) -> None:
        data = self.data
        needed = {"none": "local", "fixed": "global", "variable": "global"}.get(data.balance, data.scope)
        if data.scope != needed:
            raise ConfigError(f'data.balance = "{data.balance}" needs data.scope = "{needed}"')
        if data.max_tokens and not data.moves_samples:
            raise ConfigError('data.max_tokens needs data.scope = "global"')
        if data.balance not in ("fixed", "variable"):
            for name in ("planner", "weight_model", "weight_exponent"):
                if getattr(data, name) != _default(DataConfig, name):
                    raise ConfigError(f'data.{name} needs data.balance = "fixed" or "variable"')
        if data.balance != "budget":
            assert data.global_batch is not None
            _expect_from(1, "data.global_batch", data.global_batch)
            if data.budget or data.budget_unit != "tokens":
                raise ConfigError('data.budget and budget_unit need data.balance = "budget"')
        if data.budget_memory != _default(DataConfig, "budget_memory") and (data.balance != "budget" or data.budget):
            raise ConfigError('data.budget_memory needs data.balance = "budget" and data.budget = 0')
        if data.balance == "none" and data.square_weight:
            raise ConfigError("data.square_weight needs a data.balance that weighs samples")
        if data.balance in ("fixed", "variable"):
            self._check_plan()
        if data.balance == "budget":
            self._check_budget()

    def _check_plan(self) -> None:
        data = self.data
        try:
            BalancePlan(mode="fixed" if data.balance == "fixed" else "variable", planner=data.planner)
        except ValueError as error:
            raise ConfigError(f"data.planner: {error}") from error
        if data.square_weight and data.weight_model != "square":
            raise ConfigError('data.square_weight needs data.weight_model = "square"')
        if data.weight_exponent and data.weight_model != "power":
            raise ConfigError('data.weight_exponent needs data.weight_model = "power"')

    def _check_budget(self) -> None:
        data = self.data
        if data.moves_samples and data.budget == 0:
            raise ConfigError('data.budget must be set with data.scope = "global": it is not measured')
        _expect_from(0, "data.budget", data.budget)
        if not 0 < data.budget_memory <= 1:
            raise ConfigError(f"data.budget_memory must be above 0 and at most 1, not {data.budget_memory}")
        if data.global_batch is not None:
            raise ConfigError('data.global_batch contradicts data.balance = "budget": use data.budget')
        if data.order != "shuffled":
            raise ConfigError(f'data.order = "{data.order}" contradicts data.balance = "budget"')
        if data.square_weight and data.budget_unit != "weight":
            raise ConfigError('data.square_weight needs data.budget_unit = "weight"')
        if self.optimizer.decay != "none" and not self.run.max_steps:
            raise ConfigError(
                f'optimizer.decay = "{self.optimizer.decay}" needs run.max_steps with data.balance = "budget": the '
                "number of steps is not known before"
            )


class Difference(NamedTuple):
    """A setting that two configs have differently, such as ``model.dim``. None: it is not set."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.now)}, and was {_shown(self.before)}"

    def between(self, first: str, second: str) -> str:
        """Formats the difference of two that have the settings at the same time."""
        return f"{self.key} is {_shown(self.now)} at {second}, and {_shown(self.before)} at {first}"


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], *, sections: Iterable[str]
) -> Iterator[Difference]:
    """Yields the settings of some sections that differ.

    Args:
        before, now: settings by section.
        sections: those that are compared. The section ``""`` has the settings above all sections.
    """
    for section in sections:
        one, other = before.get(section, {}), now.get(section, {})
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                yield Difference(f"{section}.{name}" if section else name, one.get(name), other.get(name))


def effective(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by section with the sizes that the model has, so that a default equals the same number.

    Args:
        values: of ``TrainingConfig.as_dict()``, maybe of an older version. Those above all sections are in ``""``.
    """
    found: dict[str, Any] = {"": {name: value for name, value in values.items() if not isinstance(value, Mapping)}}
    found |= {name: dict(value) for name, value in values.items() if isinstance(value, Mapping)}
    try:
        model = build_config(ModelConfig, found.get("model", {}))
        sizes = model.grm()
    except ConfigError:  # Another version had other settings. They differ by name.
        return found
    found["model"] = {each.name: _plain(getattr(sizes, each.name)) for each in fields(sizes)}
    found["model"]["tables"] = dict(model.tables)
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def _default(section: type, name: str) -> Any:
    (found,) = (each for each in fields(section) if each.name == name)
    return found.default if found.default_factory is MISSING else found.default_factory()


def _expect_from(least: int, key: str, value: float) -> None:
    if not least <= value < float("inf"):
        raise ConfigError(f"{key} must be a finite number from {least}, not {value}")


def _apply(values: dict[str, Any], change: str) -> None:
    key, separator, text = change.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise ConfigError(f"a change of a setting is NAME.NAME=VALUE, not {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    for name in names[:-1]:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key}: {name} is a value, not a section")
    values[names[-1]] = value


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        return {name: each for name, each in plain.items() if each is not None}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
