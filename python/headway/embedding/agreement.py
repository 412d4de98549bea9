# SPDX-License-Identifier: Apache-2.0
"""Checks that all ranks construct a collection with the same settings, and fails on all of them if they do not.

Ranks with another order of tables, another seed or learning rate would train wrong models without an error. Each rank
sends a digest of its settings to all others. If digests differ, the ranks exchange the settings, and all of them raise
one error that names the differences. A rank that cannot construct its collection sends its error instead.

Example: rank 1 of 2 has another seed. Both raise "HashTableCollection: ranks differ: seed is 0 on rank 0, 1 on rank 1".

Invariant: every rank of the group makes the same exchanges, whether it fails or not, so that none waits for a timeout.
Cost: one small ``all_gather_object`` for each collection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist

from headway.embedding.config import FeatureConfig, TableConfig

_MOST_DIFFERENCES = 5  #: Differences that one message names at most.
_MOST_CHARACTERS = 200  #: Characters of a value in a message; longer ones are cut.


@contextmanager
def agreement(what: str, group: dist.ProcessGroup | None) -> Iterator[dict[str, str]]:
    """Gives a dictionary to fill with settings, and compares it with those of other ranks when the body ends.

    Args:
        what: name of the object that ranks construct together, for messages.
        group: the ranks, all of which run this; None, or a group of one rank: nothing is compared.
    Raises:
        ValueError: on all ranks, if settings differ or the body raised on another rank.
    """
    settings: dict[str, str] = {}
    alone = group is None or group.size() == 1
    try:
        yield settings
    except Exception as error:
        if not alone:
            _gather(_Outcome(digest="", error=f"{type(error).__name__}: {error}"), group)
        raise
    if not alone:
        _expect_equal(what, settings, group)


def settings_of(tables: Sequence[TableConfig], features: Sequence[FeatureConfig]) -> dict[str, str]:
    """Returns the settings of tables and features that ranks must share, one entry per field."""
    settings = {"the order of tables": _names(tables), "the order of features": _names(features)}
    for kind, configs in (("table", tables), ("feature", features)):
        for config in configs:
            for field in fields(config):
                settings[f"{field.name} of {kind} {config.name}"] = repr(getattr(config, field.name))
    return settings


def _names(configs: Sequence[TableConfig] | Sequence[FeatureConfig]) -> str:
    return ", ".join(config.name for config in configs)


@dataclass(frozen=True)
class _Outcome:
    """Result of one rank's constructor."""

    digest: str  #: SHA-256 of the settings.
    error: str  #: Empty if there is none.


def _expect_equal(what: str, settings: dict[str, str], group: dist.ProcessGroup | None) -> None:
    digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()
    outcomes: list[_Outcome] = _gather(_Outcome(digest, ""), group)
    failed = [f"on rank {rank}: {outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error]
    if failed:
        raise ValueError(f"{what}: other ranks could not make theirs; {failed[0]}")
    if any(outcome.digest != digest for outcome in outcomes):
        differences = list(_differences(_gather(settings, group)))
        more = len(differences) - _MOST_DIFFERENCES
        named = "; ".join(differences[:_MOST_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        raise ValueError(f"{what}: ranks differ: {named}")


def _gather(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    assert group is not None
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


def _differences(settings_R: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields one phrase for each setting that differs between ranks; ``settings_R`` has the settings of each rank."""
    for name in dict.fromkeys(name for settings in settings_R for name in settings):
        ranks_of: dict[str, list[int]] = {}
        for rank, settings in enumerate(settings_R):
            ranks_of.setdefault(settings.get(name, "missing"), []).append(rank)
        if len(ranks_of) > 1:
            yield f"{name} is " + ", ".join(
                f"{_shortened(value)} on rank{'s' * (len(ranks) > 1)} {_shortened(', '.join(map(str, ranks)))}"
                for value, ranks in ranks_of.items()
            )


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
