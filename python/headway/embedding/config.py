# SPDX-License-Identifier: Apache-2.0
"""Configurations of tables and features. They are frozen and are checked when they are made.

A step is an optimizer step: a call of ``HashTableCollection.optimizer.step()``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex

import torch

from headway import _embedding

Pooling = Literal["sum", "mean"] | None

_MOST_STEPS = (1 << 30) - 1  #: Largest ``time_to_live`` (steps), ``min_count`` and ``hot_count`` (lookups).
_MOST_OF_ALL_RANKS = 1 << 48  #: Largest ``max_rows`` and ``max_pending``.
_MOST_FLOAT32 = torch.finfo(torch.float32).max


def _number_of(value: Any, what: str) -> float:
    """Converts a number, or a tensor with one element, to a float.

    Args:
        value: the argument.
        what: its name, which begins the error message.
    Raises:
        ValueError: it is not a number, or too large for a float.
    """
    try:
        if isinstance(value, (str, bytes, bytearray)):  # float() would parse them.
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor that is not one real number
        shown = "an integer above the range of a float" if isinstance(value, int) else repr(value)
        raise ValueError(f"{what} must be a number, not {shown}") from None


@dataclass(frozen=True)
class Constant:
    """Initialises new embeddings with ``value``."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _expect_finite(self, "value")

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.constant(self.value)


@dataclass(frozen=True)
class Uniform:
    """Initialises new embeddings uniformly in [``low``, ``high``].

    An id gets the same embedding on every device and with any number of ranks.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _expect_finite(self, "low", "high")
        if self.low > self.high:
            raise ValueError(f"low must be at most high, not {self.low} with high {self.high}")
        self.build(0)  # Their difference must be a float32 too.

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.uniform(self.low, self.high, seed)


@dataclass(frozen=True)
class Normal:
    """Initialises new embeddings normally, with this mean and standard deviation."""

    mean: float = 0.0
    std: float = 0.01

    def __post_init__(self) -> None:
        _expect_finite(self, "mean", "std")
        if self.std < 0:
            raise ValueError(f"std must be at least 0, not {self.std}")

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.normal(self.mean, self.std, seed)


Initializer = Constant | Uniform | Normal


def _expect_finite(initializer: Initializer, *names: str) -> None:
    """Checks fields that become float32 values.

    Raises:
        ValueError: one is not a number, not finite, or too large for a float32.
    """
    for name in names:
        value = _number_of(getattr(initializer, name), name)
        if not abs(value) <= _MOST_FLOAT32:
            raise ValueError(f"{name} must be a finite float32, not {value}")


def learning_rate_of(value: Any, what: str) -> float:
    """Converts a learning rate or factor to a float. It may be a tensor with one element.

    Args:
        value: the argument.
        what: its name, which begins the error message.
    Raises:
        ValueError: it is not a number, not finite, or negative.
    """
    rate = _number_of(value, what)
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"{what} must be finite and at least 0, not {rate}")
    return rate


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Base of the optimizers of rows, by the formulas of ``torch.optim``. Rows without a gradient are skipped.

    Args:
        lr: initial learning rate. Schedulers change it in ``HashTableCollection.optimizer``.
        weight_decay: as in ``torch.optim``.
        decoupled_weight_decay: decay weights as AdamW does, instead of adding to the gradient.
    """

    lr: float
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", learning_rate_of(self.lr, "lr"))
        self.build()

    def build(self) -> _embedding.OptimizerOptions:
        """Makes the form of these options that a table takes.

        Raises:
            ValueError: a value is out of its range.
        """
        return self._options("sgd")

    def _options(
        self,
        kind: str,
        *,
        eps: float = 0.0,
        betas: tuple[float, float] = (0.0, 0.0),
        initial_accumulator_value: float = 0.0,
    ) -> _embedding.OptimizerOptions:
        return _embedding.OptimizerOptions(
            kind=kind,
            eps=eps,
            beta1=betas[0],
            beta2=betas[1],
            initial_accumulator_value=initial_accumulator_value,
            weight_decay=self.weight_decay,
            decoupled_weight_decay=self.decoupled_weight_decay,
        )


@dataclass(frozen=True, kw_only=True)
class NoOptimizer(Optimizer):
    """No training. Such a table loads only the embeddings of a checkpoint, which may have any optimizer.

    Its options are there because it is an ``Optimizer``; they keep their defaults.
    """

    lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr != 0 or self.weight_decay != 0 or self.decoupled_weight_decay:
            raise ValueError(f"NoOptimizer trains nothing, so it takes no options: {self}")


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """``torch.optim.SGD`` without momentum."""


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """``torch.optim.Adagrad`` with ``lr_decay`` 0."""

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("adagrad", eps=self.eps, initial_accumulator_value=self.initial_accumulator_value)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row: the mean of squares, as in FBGEMM's exact row-wise Adagrad."""

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("row_wise_adagrad", eps=self.eps, initial_accumulator_value=self.initial_accumulator_value)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """``torch.optim.Adam``, or AdamW with ``decoupled_weight_decay``. Steps are counted per table, not per row."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise ValueError(f"betas must be two numbers, not {self.betas!r}") from None
        # A list is not hashable, so the field becomes a tuple.
        object.__setattr__(self, "betas", (_number_of(first, "betas[0]"), _number_of(second, "betas[1]")))
        super().__post_init__()

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("adam", eps=self.eps, betas=self.betas)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdam(Adam):
    """Adam with one second moment per row: the mean of squares, as in FBGEMM's partial row-wise Adam."""

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("row_wise_adam", eps=self.eps, betas=self.betas)


def initial_state_of(optimizer: Optimizer) -> float:
    """Returns the value of all optimizer state of a row that has not been updated yet."""
    return optimizer.initial_accumulator_value if isinstance(optimizer, Adagrad) else 0.0


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Evicts rows of a full table: those looked up least recently (``lru``) or least frequently (``lfu``).

    A step that begins with more than ``high_water`` times ``max_rows`` rows evicts. So does a lookup that finds no
    room. On the CPU a step evicts the rows beyond ``high_water``, at least 128 but none below ``low_water``, so that no
    step takes long. On the CPU with ``lfu`` and a time to live, and always on CUDA, a step evicts down to
    ``low_water``. On CUDA a table whose ``high_water`` is 2^20 rows or more on this rank does that in 16 steps, each
    for about a 16th of the ids. A lookup without room evicts at once, so leave room above ``high_water``.

    The order follows from counts and steps; of equal rows the one with the lowest hash goes first. It is exact on all
    devices; in a table that evicts in 16 steps, it is exact within each 16th. Rows looked up in the present step or in
    the last ``lookahead`` ones (see ``HashTableCollection``) are not evicted.
    """

    policy: Literal["lru", "lfu"]
    high_water: float = 0.95
    low_water: float = 0.85

    def __post_init__(self) -> None:
        if self.policy not in ("lru", "lfu"):
            raise ValueError(f"policy must be lru or lfu, not {self.policy!r}")
        if not 0 < self.low_water < self.high_water <= 1:
            raise ValueError(f"0 < low_water < high_water <= 1 does not hold for {self.low_water}, {self.high_water}")


@dataclass(frozen=True)
class TableConfig:
    """An embedding table. Tables without ``max_rows`` and ``max_pending`` that differ only in their name are merged.

    Merged tables share one hash table and one exchange (merging.py).

    Args:
        name: name of the table in features and checkpoints.
        dim: elements of an embedding.
        optimizer: optimizer of its rows; ``NoOptimizer``, the default, is for evaluation and serving.
        initializer: initial values of its rows.
        max_rows: limit of rows over all ranks. With several ranks each may have a tenth more than its share. One rank
            has at most about 2^30. None: limited by memory only.
        eviction: policy that removes rows if there are too many; None: new ids then get no row. Their lookups are
            counted as ``refused`` in ``HashTableCollection.statistics()``.
        time_to_live: number of steps without a lookup after which a row expires: lookups find it absent, and each step
            removes the expired rows of one 64th of the table. 0: never.
        min_count: number of lookups after which an id gets a row.
        max_pending: limit of pending ids (without a row yet) over all ranks. Beyond it the ids with the fewest lookups
            are dropped until three quarters are left; ties are broken differently each time. None: 4,194,304 per rank
            and merged table.
        hot_count: rows with fewer lookups keep their embedding in bfloat16; 0: all rows are float32.
        unknown: the embedding with ``eval()`` of an id without a row: the ``initial`` one that it would begin with, or
            ``zeros``. In training such an id has its initial embedding.
    """

    name: str
    dim: int = field(kw_only=True)
    optimizer: Optimizer = field(default=NoOptimizer(), kw_only=True)
    initializer: Initializer = field(default=Uniform(-0.05, 0.05), kw_only=True)
    max_rows: int | None = field(default=None, kw_only=True)
    eviction: Eviction | None = field(default=None, kw_only=True)
    time_to_live: int = field(default=0, kw_only=True)
    min_count: int = field(default=1, kw_only=True)
    max_pending: int | None = field(default=None, kw_only=True)
    hot_count: int = field(default=0, kw_only=True)
    unknown: Literal["initial", "zeros"] = field(default="initial", kw_only=True)

    def __post_init__(self) -> None:
        _expect_name(self.name, "a table")
        if self.unknown not in ("initial", "zeros"):
            raise ValueError(f"table {self.name}: unknown must be initial or zeros, not {self.unknown!r}")
        self._expect_kinds()
        if not 1 <= self.dim <= 1 << 20:
            raise ValueError(f"table {self.name}: dim must be from 1 to {1 << 20}, not {self.dim}")
        if self.eviction is not None and self.max_rows is None:
            raise ValueError(f"table {self.name}: eviction needs max_rows")
        # max_rows and max_pending are for all ranks together. Each rank's share is checked when its table is made.
        for name, least, most in (
            ("max_rows", 1, _MOST_OF_ALL_RANKS),
            ("time_to_live", 0, _MOST_STEPS),
            ("min_count", 1, _MOST_STEPS),
            ("max_pending", 0, _MOST_OF_ALL_RANKS),
            ("hot_count", 0, _MOST_STEPS),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"table {self.name}: {name} must be from {least} to {most}, not {value}")

    def _expect_kinds(self) -> None:
        """Checks that optimizer, initializer and eviction are of this module, and that numbers are integers."""
        for name, kinds, example in (
            ("optimizer", (Sgd, Adagrad, Adam, NoOptimizer), "Adam(lr=1e-3)"),
            ("initializer", (Constant, Uniform, Normal), "Uniform(-0.05, 0.05)"),
            ("eviction", (Eviction, type(None)), 'Eviction(policy="lru")'),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ValueError(
                    f"table {self.name}: {name} must be one of headway.embedding, like {example}, not {value!r}"
                )
        for name in ("dim", "max_rows", "time_to_live", "min_count", "max_pending", "hot_count"):
            value = getattr(self, name)
            is_integer = isinstance(value, SupportsIndex) and not isinstance(value, bool)
            if not is_integer and not (value is None and name in ("max_rows", "max_pending")):
                raise ValueError(f"table {self.name}: {name} must be an integer, not {value!r}")


@dataclass(frozen=True)
class FeatureConfig:
    """A feature: lists of ids, and the pooling of their embeddings.

    Args:
        name: name of the feature in the input.
        table: name of the table that has its ids; several features may share one.
        pooling: ``sum`` and ``mean`` give one embedding per list, None one per id. Weights of the input multiply
            embeddings; ``mean`` still divides the sum by the number of ids.
    """

    name: str
    table: str = field(kw_only=True)
    pooling: Pooling = field(default="sum", kw_only=True)

    def __post_init__(self) -> None:
        _expect_name(self.name, "a feature")
        if not isinstance(self.table, str):
            raise ValueError(f"feature {self.name}: table must be the name of a table, not {self.table!r}")
        if self.pooling not in ("sum", "mean", None):
            raise ValueError(f"feature {self.name}: pooling must be sum, mean or None, not {self.pooling!r}")


def _expect_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what} needs a name, not {name!r}")
