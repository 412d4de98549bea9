# SPDX-License-Identifier: Apache-2.0
"""``DenseOptimizer``: trains the dense model in the way of each mode.

Idea: with ``local``, ``sync`` and ``hybrid`` all dense workers have the same parameters. A step adds their gradients
and makes the step of ``torch.optim``. With ``async`` the parameters are rows of a table on the servers: each lookup
brings them, and the gradients of a batch take those of the parameters along.

Blocks: all parameters, one after the other, are cut into rows of ``BLOCK_DIM`` floats, and the last row is filled with
zeros. A row holds what its parameters have learned, the difference to their initial values, so rows begin at 0 and no
server is told initial values.

Example: a model of 200 parameters has 2 blocks. A lookup brings both, (2, 128). Parameter 130 is its initial value plus
element 2 of block 1.

Invariants: the name of the table has a checksum of the initial parameters, so workers, loaders and checkpoints whose
models begin otherwise are told apart. All parameters of a worker change in a lookup, and at no other time.
Complexity: a lookup and a part have all parameters once, and 16 bytes for each block.
Source: Persia (KDD 2022), section 6, has such a mode for comparison.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from headway.embedding.checkpoint.rank_values import all_gather
from headway.embedding.config import Adagrad, Adam, Constant, FeatureConfig, Optimizer, Sgd, TableConfig
from headway.embedding.process_groups import any_rank

#: Floats of a block. A key costs 16 bytes of each lookup, a 32nd of its row. Smaller blocks spread small models more
#: evenly over servers, and compression of values has blocks of 64.
BLOCK_DIM = 128


@dataclass(frozen=True)
class DenseBlocks:
    """The table that has the parameters of a dense model, and the feature by which they are looked up.

    Attributes:
        count: rows, whose ids are 0 to ``count`` - 1.
        table: named by a checksum of the initial parameters.
        feature: without pooling.
    """

    count: int
    table: TableConfig
    feature: FeatureConfig


class _KeepsDenseGradients(Protocol):
    """``HybridTables``."""

    def keep_dense_gradients(self, values: npt.NDArray[np.float32]) -> None: ...


class DenseOptimizer(torch.optim.Optimizer):
    """Optimizer of a dense model, which ``connect()`` binds to the mode of its tables.

    ::

        dense = hybrid.DenseOptimizer(model, Adam(lr=0.002))
        tables = hybrid.connect("ctr.toml", tables=[...], features=[...], dense=dense)
        for batch in hybrid.batches(tables, source):
            dense.zero_grad()
            loss_of(model(tables(batch.features), batch.dense), batch.labels).backward()
            dense.step()
            tables.optimizer.step()

    With ``async`` a step is a part of ``tables.optimizer.step()``, which comes after it. All parameters are those of
    the last lookup, with ``eval()`` too. A parameter without a gradient has a gradient of zeros, and other values of
    the model, such as running means, stay with their worker. Gradients may be clipped before a step.

    All dense workers begin with the same parameters. A later trainer of the same servers does, too, and one that
    resumes from a checkpoint: seed them.

    Args:
        model: its parameters with ``requires_grad``, which are float32. They keep their number and sizes.
        optimizer: ``Sgd``, ``Adagrad`` or ``Adam`` of ``headway.embedding``. With ``async`` it has no weight decay,
            since servers have no weights but differences.
    Raises:
        ValueError: a parameter is not float32, there is none, or ``torch.optim`` lacks the optimizer.
    """

    #: GradScaler then leaves unscaling to step(), and during it sets ``grad_scale`` and ``found_inf`` here.
    _step_supports_amp_scaling = True

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not named:
            raise ValueError("the dense model has no parameters to train")
        for name, each in named.items():
            if each.dtype != torch.float32:
                raise ValueError(f"parameter {name} of the dense model must be float32, not {each.dtype}")
        self.config = optimizer
        self._parameters = list(named.values())
        self._sizes = [each.numel() for each in self._parameters]
        self._blocks: DenseBlocks | None = None
        self._initial = torch.empty(0)  #: (count * BLOCK_DIM,) Parameters at the first use of ``blocks``.
        self._group: dist.ProcessGroup | None = None
        self._tables: weakref.ReferenceType[_KeepsDenseGradients] | None = None
        self._is_bound = False
        inner = _torch_optimizer(self._parameters, optimizer)
        super().__init__(self._parameters, inner.defaults)
        self._inner = inner
        self._share_state()

    def _share_state(self) -> None:
        """Lets schedulers see and change the groups of the optimizer that makes the steps."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    # Binding

    def bind(self, group: dist.ProcessGroup | None, tables: _KeepsDenseGradients | None = None) -> None:
        """Binds the steps to a mode. ``connect()`` calls it on all dense workers.

        Args:
            group: the dense workers, whose initial parameters are compared; None: this one is alone. Steps add their
                gradients.
            tables: they get the gradients instead, and their lookups call ``take_rows()``.
        Raises:
            ValueError: dense workers have different initial parameters, or the optimizer cannot be one of tables.
        """
        if tables is not None and self.config.weight_decay:
            raise ValueError(
                f'weight_decay = {self.config.weight_decay} of the dense model contradicts mode = "async": servers '
                "have what parameters have learned, and not their values"
            )
        group = None if group is None or group.size() == 1 else group
        names = all_gather(self.blocks.table.name, group)
        if len(set(names)) > 1:
            raise ValueError(
                f"dense workers have different initial parameters, by their checksums {', '.join(names)}: call "
                "torch.manual_seed() before the model is made"
            )
        self._is_bound = True
        self._group = group if tables is None else None
        self._tables = None if tables is None else weakref.ref(tables)
        if tables is None:
            self._initial = torch.empty(0)

    # Blocks

    @property
    def blocks(self) -> DenseBlocks:
        """The table of the parameters. Its first use decides which values are the initial ones."""
        if self._blocks is None:
            flat = torch.cat([each.detach().to("cpu").reshape(-1) for each in self._parameters])
            count = -(-len(flat) // BLOCK_DIM)
            self._initial = nn.functional.pad(flat, (0, count * BLOCK_DIM - len(flat)))
            name = f"dense_{zlib.crc32(repr(self._sizes).encode() + flat.numpy().tobytes()):08x}"
            # Tables with a limit are not merged with others, and no id of this one is ever pending.
            table = TableConfig(name, dim=BLOCK_DIM, optimizer=self.config, initializer=Constant(0.0), max_pending=0)
            self._blocks = DenseBlocks(count, table, FeatureConfig(name, table=name, pooling=None))
        return self._blocks

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self.param_groups[0]["lr"])

    @torch.no_grad()
    def take_rows(self, rows: npt.NDArray[np.float32]) -> None:
        """Sets all parameters to their initial values plus rows, (blocks, BLOCK_DIM)."""
        values = torch.from_numpy(rows).reshape(-1) + self._initial
        for parameter, part in zip(self._parameters, torch.split(values[: sum(self._sizes)], self._sizes), strict=True):
            parameter.copy_(part.view_as(parameter))

    # Learning

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters by their gradients; with ``async`` gives the gradients to the tables.

        Without ``async`` all dense workers call it. With a GradScaler that found inf or NaN on any of them it changes
        nothing; with ``async`` each looks at its own gradients.

        Raises:
            RuntimeError: ``connect()`` did not get this optimizer, or with ``async`` no batch waits for its step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._is_bound:
            raise RuntimeError("step(): pass this optimizer to hybrid.connect() as dense")
        found_inf = getattr(self, "found_inf", None)  # None: there is no scaler, on all workers.
        if found_inf is not None and any_rank(self._group, bool(found_inf)):
            return loss
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            torch._foreach_div_([each.grad for each in self._parameters if each.grad is not None], float(scale))
        if self._tables is not None:
            self._give_gradients(self._tables())
            return loss
        if self._group is not None:
            self._add_gradients(self._group)
        self._inner.step()
        return loss

    def _flat_gradients(self) -> torch.Tensor:
        return torch.cat(
            [(torch.zeros_like(each) if each.grad is None else each.grad).reshape(-1) for each in self._parameters]
        )

    def _add_gradients(self, group: dist.ProcessGroup) -> None:
        """Adds gradients over a group. A worker without any, such as one without samples, adds zeros."""
        flat = self._flat_gradients()
        dist.all_reduce(flat, group=group)
        for parameter, part in zip(self._parameters, torch.split(flat, self._sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def _give_gradients(self, tables: _KeepsDenseGradients | None) -> None:
        if tables is None:
            raise RuntimeError("the tables of this optimizer are gone")
        if all(each.grad is None for each in self._parameters):
            return
        values = np.zeros((self.blocks.count, BLOCK_DIM), dtype=np.float32)
        values.reshape(-1)[: sum(self._sizes)] = self._flat_gradients().to("cpu").numpy()
        tables.keep_dense_gradients(values)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Returns that of ``torch.optim``. With ``async`` moments are on the servers."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the result of ``state_dict()``."""
        self._inner.load_state_dict(dict(state_dict))
        self._share_state()


def _torch_optimizer(parameters: list[nn.Parameter], config: Optimizer) -> torch.optim.Optimizer:
    """Makes the optimizer of ``torch.optim`` with the formulas of one for rows.

    Raises:
        ValueError: there is none.
    """
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if type(config) is Adam:
        kind = torch.optim.AdamW if config.decoupled_weight_decay else torch.optim.Adam
        return kind(parameters, betas=config.betas, eps=config.eps, **options)
    if type(config) in (Sgd, Adagrad) and not config.decoupled_weight_decay:
        if isinstance(config, Adagrad):
            initial = config.initial_accumulator_value
            return torch.optim.Adagrad(parameters, eps=config.eps, initial_accumulator_value=initial, **options)
        return torch.optim.SGD(parameters, **options)
    raise ValueError(f"a dense model is trained by Sgd, Adagrad or Adam as in torch.optim, not by {config}")
