"""What tables and features are: frozen, checked when they are made, and equal where tables may be merged."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex

from headway import _embedding

Pooling = Literal["sum", "mean"] | None

_MOST_STEPS = (1 << 30) - 1  #: and lookups
_MOST_OF_ALL_RANKS = 1 << 48


@dataclass(frozen=True)
class Constant:
    """All values of new vectors are ``value``."""

    value: float = 0.0

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.constant(self.value)


@dataclass(frozen=True)
class Uniform:
    """Values of new vectors are even in [``low``, ``high``]: the same on every device, for every number of ranks."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"a range from {self.low} to {self.high} is none")

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.uniform(self.low, self.high, seed)


@dataclass(frozen=True)
class Normal:
    """Values of new vectors have this mean and standard deviation."""

    mean: float = 0.0
    std: float = 0.01

    def build(self, seed: int) -> _embedding.Initializer:
        return _embedding.Initializer.normal(self.mean, self.std, seed)


Initializer = Constant | Uniform | Normal


def learning_rate_of(value: Any, what: str) -> float:
    """The number that an argument stands for; a tensor of one number is one.

    Raises:
        ValueError: it is no number, not finite, or negative; the message begins with ``what``.
    """
    try:
        rate = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, not {value!r}") from None
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"{what} must be finite and at least 0, not {rate}")
    return rate


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How rows learn, by the formulas of ``torch.optim``; rows without a gradient are passed over.

    ``lr`` is where the learning rate begins; ``HashTableCollection.optimizer`` has it for schedulers.
    """

    lr: float
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", learning_rate_of(self.lr, "lr"))
        self.build()

    def build(self) -> _embedding.OptimizerOptions:
        """Raises: ValueError: a value is out of its range."""
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
    """Rows do not learn. Such a table takes the embeddings alone from a checkpoint, whatever optimizer it was of."""

    lr: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """``torch.optim.SGD`` without momentum."""


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """``torch.optim.Adagrad`` without decay of the rate."""

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("adagrad", eps=self.eps, initial_accumulator_value=self.initial_accumulator_value)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator a row, of the mean of squares, as FBGEMM's exact row-wise Adagrad."""

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("row_wise_adagrad", eps=self.eps, initial_accumulator_value=self.initial_accumulator_value)


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """``torch.optim.Adam``, or AdamW with ``decoupled_weight_decay``; its step is that of the whole table."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))  # Which may be a list, and must be hashable.
        super().__post_init__()

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("adam", eps=self.eps, betas=self.betas)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdam(Adam):
    """Adam with one second moment a row, of the mean of squares, as FBGEMM's partial row-wise Adam."""

    def build(self) -> _embedding.OptimizerOptions:
        return self._options("row_wise_adam", eps=self.eps, betas=self.betas)


def initial_state_of(optimizer: Optimizer) -> float:
    """The value of all that an optimizer keeps of a row that has not learned yet."""
    return optimizer.initial_accumulator_value if isinstance(optimizer, Adagrad) else 0.0


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Which rows go when there are too many: those looked up longest ago (``lru``) or most rarely (``lfu``).

    A step that begins with more than ``high_water`` of ``max_rows`` evicts; so does a lookup for which there is no
    room. On the CPU the rows beyond ``high_water`` go, at least 128 but none below ``low_water``, so that no step takes
    long. On CUDA, and with ``lfu`` and a time to live, a step evicts down to ``low_water``. The order is exact on all
    devices and follows from counts and steps; of equal rows those of the lowest hash go. Rows that are in use stay.
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
    """A table of embeddings. Those without ``max_rows`` and ``max_pending`` that differ in nothing but their name are
    merged into one.

    Args:
        name: what features and checkpoints call it.
        dim: values of a vector.
        optimizer: how its rows learn; ``NoOptimizer``, the default, is for evaluation and serving.
        initializer: what its rows begin with.
        max_rows: of all ranks together, and a tenth more for ranks that get more than their share; about 2^30 on one
            rank at most. None: as many as memory holds.
        eviction: which rows go when there are too many; None: new ids then get no row, which is counted.
        time_to_live: steps after which rows that are not looked up are expired: a lookup finds them absent, and each
            step removes those of one 64th of the table. 0: never.
        min_count: lookups after which an id gets a row.
        max_pending: ids of all ranks that may wait for a row; with more, those of fewest lookups are forgotten until
            three quarters are left, of equal ones others each time. None: 4,194,304 on each rank, for all the tables
            that are merged.
        hot_count: rows of fewer lookups have their vector in bfloat16; 0: none.
        unknown: the vector of an id without a row with ``eval()``: the ``initial`` one that it would begin with, or
            ``zeros``, so that it adds nothing. In training such an id has its initial vector.
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
        # Limits are for all ranks together; what one rank may have is checked when its table is made.
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
        """Takes only this module's optimizers, initializers and evictions, and only integers as numbers."""
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
    """A feature: lists of ids, and what is made of their vectors.

    Args:
        name: of the feature in the input.
        table: the table that its ids are in; several features may share one.
        pooling: ``sum`` and ``mean`` give a vector for each list, None one for each id. Weights of the input multiply
            vectors; with ``mean`` the sum is still divided by the number of ids.
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
