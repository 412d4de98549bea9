# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a collection's tables, with the interface of ``torch.optim`` for schedulers and GradScaler."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from headway.embedding.anchor import Anchor
from headway.embedding.config import learning_rate_of
from headway.embedding.merging import MergedTable

#: Entries of a parameter group that belong to its tables. They are not copied to a group with other tables.
_OF_ONE_GROUP = ("params", "name", "tables", "lr_factors")


class LearningTables(Protocol):
    """Interface of tables that keep pending gradients and apply them."""

    def apply_gradients(
        self, rates: Sequence[float], divisors: Sequence[float], factors: Sequence[Mapping[str, float]] = ()
    ) -> None:
        """Updates the rows that have gradients.

        Args:
            rates: learning rate of each merged table.
            divisors: divisor of each merged table's gradients: the scale of a GradScaler that is still in them.
            factors: for each merged table, factors of the rate by table name; tables without one have 1.
        """

    def drop_gradients(self) -> None:
        """Drops pending gradients."""


class TableOptimizer(torch.optim.Optimizer):
    """Applies the gradients of all backward passes since the last ``step()`` or ``zero_grad()``, summed by key.

    A key is the pair (table id, id). Tables of equal configuration are merged (merging.py).

    There is one parameter group per merged table. It has ``lr`` (for schedulers), the names of its ``tables``, and
    ``lr_factors`` by table name (see ``set_lr_factor()``). Its parameter is an ``Anchor``, a dummy whose gradient
    ``torch.amp.GradScaler`` reads and may unscale. With a scaler all ranks must skip the same steps: the scaler must
    see gradients that are equal on all ranks, such as those of DDP. On CUDA a step waits for the device only with a
    scaler, or with different rates within a merged table.
    """

    #: GradScaler then leaves scaling to step(), and during it sets ``grad_scale`` and ``found_inf`` here.
    _step_supports_amp_scaling = True

    def __init__(self, tables: LearningTables, merged_tables: Sequence[MergedTable], anchors: Sequence[Anchor]) -> None:
        self._tables_ref = weakref.ref(tables)  # The tables own this optimizer: a strong reference would be a cycle.
        super().__init__(
            [
                {
                    "params": [anchor],
                    "lr": merged.config.optimizer.lr,
                    "lr_factors": {},
                    "name": merged.name,
                    "tables": [each.name for each in merged.tables],
                }
                for merged, anchor in zip(merged_tables, anchors, strict=True)
            ],
            {},
        )

    def set_lr_factor(self, table: str, factor: float) -> None:
        """Sets a factor of one table's learning rate, also if the table is merged. Schedulers change ``lr`` as before.

        A merged table with different rates needs one update per table, and on CUDA the host waits for the device.

        Raises:
            ValueError: there is no such table, or the factor is negative or not finite.
        """
        factor = learning_rate_of(factor, f"the factor of the learning rate of table {table}")
        for group in self.param_groups:
            if table in group["tables"]:
                group["lr_factors"] = {**group["lr_factors"], table: factor}
                return
        ours = ", ".join(name for group in self.param_groups for name in group["tables"])
        raise ValueError(f"there is no table {table}; there are: {ours}")

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates all rows that have gradients. With a GradScaler that found inf or NaN it drops the gradients.

        Args:
            closure: computes the loss again, as in ``torch.optim``.
        Returns:
            the loss of the closure, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if bool(getattr(self, "found_inf", False)):
            self._tables().drop_gradients()
            return loss
        grad_scale = getattr(self, "grad_scale", None)
        scale = 1.0 if grad_scale is None else float(grad_scale)
        self._tables().apply_gradients(
            [
                learning_rate_of(group["lr"], f"the learning rate of table {group['name']}")
                for group in self.param_groups
            ],
            [scale / unscaled_by(group["params"][0]) for group in self.param_groups],
            [group["lr_factors"] for group in self.param_groups],
        )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops pending gradients."""
        self._tables().drop_gradients()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the learning rate and other values of each group. Groups are matched by the names of their tables.

        Tables may be in another order, or merged differently. A group whose tables are all new keeps its values.

        Raises:
            ValueError: no group has tables of this optimizer, or tables that are merged now had different values.
        """
        saved = {table: group for group in state_dict["param_groups"] for table in _names_of(group)}
        if self.param_groups and not any(name in saved for group in self.param_groups for name in group["tables"]):
            ours = ", ".join(name for group in self.param_groups for name in group["tables"])
            raise ValueError(f"the state is of the tables {', '.join(saved)}, and none of these is here: {ours}")
        groups = []
        for index, own in enumerate(self.param_groups):
            values = _common_values({name: saved[name] for name in own["tables"] if name in saved})
            factors = {
                name: saved[name].get("lr_factors", {}).get(name, 1.0) for name in own["tables"] if name in saved
            }
            values["lr_factors"] = {**own["lr_factors"], **factors}
            groups.append({**own, **values, "name": own["name"], "tables": own["tables"], "params": [index]})
        super().load_state_dict({"state": {}, "param_groups": groups})

    def _tables(self) -> LearningTables:
        tables = self._tables_ref()
        if tables is None:
            raise RuntimeError("the tables of this optimizer are gone")
        return tables

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the optimizer of tables cannot be copied: save its state_dict(), and that of the tables")


def unscaled_by(anchor: Anchor) -> float:
    """Returns the factor by which a GradScaler multiplied the gradient before the step; 1 if it is not finite."""
    factor = anchor.factor
    return factor if math.isfinite(factor) else 1.0


def _names_of(group: Mapping[str, Any]) -> list[str]:
    """Returns the tables of a saved group. States of earlier versions have them in the group's name only."""
    if "tables" in group:
        return list(group["tables"])
    if "name" not in group:
        raise ValueError("the state has a group without the names of its tables: it is of another optimizer")
    return str(group["name"]).split("+")


def _common_values(by_table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values of saved groups whose tables are one group now.

    Raises:
        ValueError: their values differ.
    """
    common: dict[str, Any] = {}
    first = ""
    for table, group in by_table.items():
        values = {key: value for key, value in group.items() if key not in _OF_ONE_GROUP}
        if not first:
            first, common = table, values
        elif values != common:
            raise ValueError(
                f"tables {first} and {table} are merged and share a learning rate, but the state has {common} and "
                f"{values}: give them different configurations, or the state equal values"
            )
    return common
