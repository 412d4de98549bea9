"""Ranks compare how they make a collection, and fail together where they differ.

Ranks with another order of tables, another seed or learning rate would train wrong models without an error. Each rank
sends a digest of its settings to all others. Only if digests differ, the settings themselves follow, and all ranks
raise one error that names the differences. A rank that cannot make its collection at all sends its error instead.

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

_MOST_DIFFERENCES = 5  #: named in one message
_MOST_CHARACTERS = 200  #: of a value in a message


@contextmanager
def agreement(what: str, group: dist.ProcessGroup | None) -> Iterator[dict[str, str]]:
    """Compares the settings that the body puts into the dictionary with those of other ranks when the body ends.

    Args:
        what: the thing that ranks make together, for messages.
        group: all of its ranks run this; None, or a group of one rank: nothing is compared.
    Raises:
        ValueError: settings differ, or the body raised on another rank. On all ranks.
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
    """The settings of tables and features that ranks must have in common, one entry for each field."""
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
    digest: str
    error: str  #: empty where there is none


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
    """One phrase for each setting that is not the same on all ranks."""
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
