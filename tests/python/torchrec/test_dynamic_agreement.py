# SPDX-License-Identifier: Apache-2.0
"""If ranks shard a model with different settings of dynamic tables, all of them fail and name the differences."""

from __future__ import annotations

from typing import Any

import headway.torchrec
import pytest
from dynamic_models import CPU, POOLED, SEQUENCE, Kind, Model
from headway.embedding import Adam, Normal
from headway.torchrec import DynamicTable
from rank_processes import run_ranks

#: Arguments of ``shard()`` on rank 1 (rank 0 has the defaults), and the error on both ranks.
UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"seed": 2}, "seed is 1 on rank 0, 2 on rank 1"),
    ({"strict": True}, "strict is False on rank 0, True on rank 1"),
    ({"optimizer": Adam(lr=0.2)}, "optimizer of table item is Adam(lr=0.1"),
    ({"initializer": Normal(std=0.5)}, "initializer of table item is"),
    ({"min_count": 3}, "min_count of table item is 1 on rank 0, 3 on rank 1"),
    ({"kind": Kind(pooled=True, dims=(4, 8))}, "pooling of table user is PoolingType.MEAN on rank 0, PoolingType.SUM"),
]


def shard(*, kind: Kind = POOLED, seed: int = 1, strict: bool = False, **settings: Any) -> Any:
    table = DynamicTable(**{"optimizer": Adam(lr=0.1), "initializer": Normal(), **settings})
    tables = {"item": table, "user": table}
    return headway.torchrec.shard(Model(kind), tables, device=CPU, seed=seed, strict=strict)


def shard_unlike(rank: int) -> list[str]:
    messages = []
    for arguments, _ in UNLIKE:
        try:
            shard(**(arguments if rank == 1 else {}))
        except ValueError as error:
            messages.append(str(error))
        else:
            messages.append("nothing was said")
    return messages


def test_all_ranks_name_what_differs() -> None:
    first, second = run_ranks(shard_unlike, 2)
    assert first == second
    for message, (_, expected) in zip(first, UNLIKE, strict=True):
        assert message.startswith("dynamic tables of ") and expected in message


def shard_wrong(rank: int) -> str:
    """Shards without an optimizer on rank 1 only. Returns the error."""
    with pytest.raises(ValueError) as raised:
        shard(kind=SEQUENCE, **({"optimizer": None} if rank == 1 else {}))
    return str(raised.value)


def test_all_ranks_fail_where_one_cannot_shard() -> None:
    other, own = run_ranks(shard_wrong, 2, timeout_s=20)
    assert own.startswith("table item has no optimizer")
    assert own in other and "other ranks could not make theirs; on rank 1" in other
