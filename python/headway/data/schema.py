# SPDX-License-Identifier: Apache-2.0
"""``SampleSchema``: the columns of a table in which each row is one user's sequence."""

from __future__ import annotations

from dataclasses import dataclass

#: Prefix of the columns of targets: feature "item" of targets is in column "target_item".
TARGET = "target_"


@dataclass(frozen=True, kw_only=True)
class SampleSchema:
    """Columns of a sample: a user's context, the events of the history, and the targets.

    Targets are the items to score; the user saw them after the history.

    Example: ``SampleSchema(context=("user",), events=("item", "shop"), actions=("action",), labels=("click", "buy"))``
    reads the columns user, item, shop, action, time, target_item, target_shop, target_time, click and buy.

    Attributes:
        context: integers, one per sample. Each is a token of its own in front of the history.
        events: features of history events and of targets. Column ``NAME`` has a list per sample for the history, and
            column ``target_NAME`` one for the targets.
        actions: features of history events only, such as what the user did with an item.
        labels: lists of 0 and 1, one value per target.
        time: integer time of each event, ascending; its column for targets is ``target_<time>``. None: no times.
        group: the context feature by which GAUC (mean AUC of groups) groups targets; None: there is none.
    """

    context: tuple[str, ...] = ()
    events: tuple[str, ...]
    actions: tuple[str, ...] = ()
    labels: tuple[str, ...]
    time: str | None = "time"
    group: str | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise ValueError(f"column {twice[0]} is used twice")
        if not self.events:
            raise ValueError("events needs at least one feature")
        if not self.labels:
            raise ValueError("labels needs at least one column")
        if self.group is not None and self.group not in self.context:
            raise ValueError(
                f"group {self.group} is none of the context features {', '.join(self.context) or '(none)'}"
            )

    @property
    def history_columns(self) -> tuple[str, ...]:
        """Columns with one value per event of the history."""
        return (*self.events, *self.actions, *((self.time,) if self.time else ()))

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Columns with one value per target, without labels."""
        return tuple(TARGET + name for name in (*self.events, *((self.time,) if self.time else ())))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.context, *self.history_columns, *self.target_columns, *self.labels)

    @property
    def list_columns(self) -> tuple[str, ...]:
        """Columns with a list per sample."""
        return (*self.history_columns, *self.target_columns, *self.labels)
