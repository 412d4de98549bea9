"""The optimizer of a collection's tables, as ``torch.optim`` and its schedulers see it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from headway.embedding.anchor import Anchor
from headway.embedding.config import learning_rate_of
from headway.embedding.merging import MergedTable

#: Values of a parameter group that do not go to a group of other tables as they are.
_OF_ONE_GROUP = ("params", "name", "tables", "lr_factors")


class LearningTables(Protocol):
    """What has gradients of tables, and applies them."""

    def apply_gradients(
        self, rates: Sequence[float], divisors: Sequence[float], factors: Sequence[Mapping[str, float]] = ()
    ) -> None:
        """
        Args:
            rates: of the merged tables.
            divisors: of their gradients.
            factors: of the rates, by the names of tables within each merged one; 1 for others.
        """

    def drop_gradients(self) -> None:
        """Forgets those that were not applied."""


class TableOptimizer(torch.optim.Optimizer):
    """Applies the gradients of the backward passes since the last ``step()`` or ``zero_grad()``, added up by key.

    A parameter group for each merged table, with its ``lr`` and the names of its ``tables``, for schedulers, and
    ``lr_factors`` by name where tables of the group differ (``set_lr_factor()``). Its parameter is no weight but an
    ``Anchor``, whose gradient ``torch.amp.GradScaler`` sees and may unscale. With a scaler all ranks must skip the same
    steps: let it see gradients that all ranks share, as those of DDP are. On CUDA only a step with a scaler, or with
    different rates within a merged table, waits for the device.
    """

    #: GradScaler then leaves scaling to step(), and during it sets ``grad_scale`` and ``found_inf`` here.
    _step_supports_amp_scaling = True

    def __init__(self, tables: LearningTables, groups: Sequence[MergedTable], anchors: Sequence[Anchor]) -> None:
        self._tables_ref = weakref.ref(tables)  # Which have us.
        super().__init__(
            [
                {
                    "params": [anchor],
                    "lr": group.config.optimizer.lr,
                    "lr_factors": {},
                    "name": group.name,
                    "tables": [each.name for each in group.tables],
                }
                for group, anchor in zip(groups, anchors, strict=True)
            ],
            {},
        )

    def set_lr_factor(self, table: str, factor: float) -> None:
        """Multiplies the rate of one table, also where it is merged with others; schedulers go on with ``lr``.

        A merged table with different rates is updated once for each of them, and on CUDA the host waits for the device.

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
        """One update of all rows that have gradients."""
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
        """Drops the gradients that were not applied."""
        self._tables().drop_gradients()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the learning rate and other values of each group from the groups that had its tables, by their names.

        Tables may be in another order, and merged otherwise. A group whose tables are all new keeps its values.

        Raises:
            ValueError: no group has tables of this optimizer, or tables that are merged now had different values.
        """
        saved = {table: group for group in state_dict["param_groups"] for table in _names_of(group)}
        if self.param_groups and not any(name in saved for group in self.param_groups for name in group["tables"]):
            ours = ", ".join(name for group in self.param_groups for name in group["tables"])
            raise ValueError(f"the state is of the tables {', '.join(saved)}, and none of these is here: {ours}")
        groups = []
        for number, own in enumerate(self.param_groups):
            values = _common_values({name: saved[name] for name in own["tables"] if name in saved})
            factors = {
                name: saved[name].get("lr_factors", {}).get(name, 1.0) for name in own["tables"] if name in saved
            }
            values["lr_factors"] = {**own["lr_factors"], **factors}
            groups.append({**own, **values, "name": own["name"], "tables": own["tables"], "params": [number]})
        super().load_state_dict({"state": {}, "param_groups": groups})

    def _tables(self) -> LearningTables:
        tables = self._tables_ref()
        if tables is None:
            raise RuntimeError("the tables of this optimizer are gone")
        return tables

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the optimizer of tables cannot be copied: save its state_dict(), and that of the tables")


def unscaled_by(anchor: Anchor) -> float:
    """What a GradScaler has multiplied the gradient by, before the step."""
    factor = anchor.factor
    return factor if math.isfinite(factor) else 1.0


def _names_of(group: Mapping[str, Any]) -> list[str]:
    """The tables of a saved group; those of states without ``tables`` are in its name."""
    if "tables" in group:
        return list(group["tables"])
    if "name" not in group:
        raise ValueError("the state has a group without the names of its tables: it is of another optimizer")
    return str(group["name"]).split("+")


def _common_values(by_table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of the saved groups of tables that are one group now."""
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
