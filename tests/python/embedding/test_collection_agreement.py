# SPDX-License-Identifier: Apache-2.0
"""Ranks that make a collection share its ids by default, and all fail if their arguments differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from headway.embedding import LOCAL, Adam, Eviction, FeatureConfig, HashTableCollection, Sgd, TableConfig, Uniform
from headway.embedding.agreement import agreement
from rank_processes import BACKENDS, run_ranks

NAMES = ("user", "item")


def table(name: str, **more: Any) -> TableConfig:
    return TableConfig(name, **{"dim": 4, "optimizer": Adam(lr=0.1), **more})


def make(**more: Any) -> HashTableCollection:
    return HashTableCollection(**{"tables": [*map(table, NAMES)], **features_of(*NAMES), **more})


def tables_with(**more: Any) -> dict[str, Any]:
    """Returns arguments with other settings of the table ``user``."""
    return {"tables": [table("user", **more), table("item")]}


def features_of(*names: str, **more: Any) -> dict[str, Any]:
    return {"features": [FeatureConfig(name, table=name, **more) for name in names]}


#: Arguments of rank 1, and the error on both ranks. Rank 0 has the arguments of ``make()``.
UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "ranks differ: seed is 0 on rank 0, 1 on rank 1"),
    ({"gradient_reduction": "sum"}, "gradient_reduction is mean on rank 0, sum on rank 1"),
    ({"tables": [table("item"), table("user")]}, "the order of tables is user, item on rank 0, item, user on rank 1"),
    (tables_with(dim=8), "dim of table user is 4 on rank 0, 8 on rank 1"),
    (tables_with(optimizer=Adam(lr=0.2)), "optimizer of table user is Adam(lr=0.1"),
    (tables_with(optimizer=Sgd(lr=0.1)), "Sgd(lr=0.1"),
    (tables_with(initializer=Uniform(-1, 1)), "initializer of table user is"),
    (tables_with(min_count=2), "min_count of table user is 1 on rank 0, 2 on rank 1"),
    (tables_with(max_rows=9, eviction=Eviction(policy="lru")), "max_rows of table user is None on rank 0, 9 on rank 1"),
    (
        {"tables": [*map(table, NAMES), table("x")], **features_of(*NAMES, "x")},
        "the order of tables is user, item on rank 0, user, item, x on rank 1",
    ),
    (features_of(*NAMES, pooling="mean"), "pooling of feature user is 'sum' on rank 0, 'mean' on rank 1"),
    (features_of(*NAMES[::-1]), "the order of features is user, item on rank 0, item, user on rank 1"),
    ({"dedup": "none"}, "dedup is both on rank 0, none on rank 1"),
    ({"strict": True}, "strict is False on rank 0, True on rank 1"),
    ({"lookahead": 2}, "lookahead is 1 on rank 0, 2 on rank 1"),
]


def make_unlike(rank: int) -> list[str]:
    messages = []
    for arguments, _ in UNLIKE:
        try:
            make(**(arguments if rank == 1 else {}))
        except ValueError as error:
            messages.append(str(error))
        else:
            messages.append("nothing was said")
    return messages


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ranks_name_what_differs(backend: str) -> None:
    by_rank = run_ranks(make_unlike, 2, backend=backend)
    assert by_rank[0] == by_rank[1]
    for message, (_, expected) in zip(by_rank[0], UNLIKE, strict=True):
        assert message.startswith("HashTableCollection: ranks differ: ")
        assert expected in message


def make_wrong(rank: int) -> tuple[list[str], int]:
    messages = []
    for arguments in ({"lookahead": -1}, {"features": [FeatureConfig("f", table="x")]}, {"dedup": "all"}):
        try:
            make(**(arguments if rank == 1 else {}))  # type: ignore[arg-type]
        except ValueError as error:
            messages.append(str(error))
    return messages, make().num_ranks


def test_all_ranks_fail_where_one_cannot_make_its_collection() -> None:
    (others, ranks), (own, _) = run_ranks(make_wrong, 2, timeout_s=20)
    assert own[0] == "lookahead must be from 0, not -1"
    assert others[0] == f"HashTableCollection: other ranks could not make theirs; on rank 1: ValueError: {own[0]}"
    assert len(own) == len(others) == 3
    assert "there is no table x" in others[1] and "dedup must be" in others[2]
    assert ranks == 2, "ranks can go on"


def name_ranks_that_differ(rank: int) -> str:
    try:
        with agreement("numbers", dist.group.WORLD) as settings:
            settings.update({f"setting {number}": str(rank % 2) for number in range(7)} | {"common": "same"})
    except ValueError as error:
        return str(error)
    return "nothing was said"


def test_ranks_are_listed_by_value_and_long_lists_are_cut() -> None:
    (message, *others) = run_ranks(name_ranks_that_differ, 4)
    assert others == [message] * 3
    assert message.startswith("numbers: ranks differ: setting 0 is 0 on ranks 0, 2, 1 on ranks 1, 3; setting 1 is")
    assert message.endswith("; and 2 more") and "common" not in message


def rows_of(tables: HashTableCollection) -> int:
    return sum(table["rows"] for table in tables.statistics()["tables"].values())


def look_up_by_default(rank: int) -> tuple[int, int, int, list[float]]:
    """Trains one collection with the default group and one with ``LOCAL``; only rank 0 has gradients.

    Returns:
        number of ranks, rows of this rank in the shared and in the local tables, and embeddings of the shared tables.
    """
    ids = {name: (torch.arange(100), torch.full((100,), 1)) for name in NAMES}
    shared, local = make(), make(process_group=LOCAL)
    for tables in (shared, local):
        (tables(ids)["user"].sum() * (1.0 if rank == 0 else 0.0)).backward()
        tables.optimizer.step()
    return shared.num_ranks, rows_of(shared), rows_of(local), shared.eval()(ids)["user"].flatten().tolist()


def test_ranks_of_the_world_group_share_their_tables_by_default() -> None:
    first, second = run_ranks(look_up_by_default, 2)
    assert first[0] == second[0] == 2
    assert first[1] + second[1] == 200 and min(first[1], second[1]) > 50
    assert first[2] == second[2] == 200
    assert first[3] == second[3], "both have what both learned"


def use_smaller_group(rank: int) -> tuple[int, str]:
    group = dist.new_group([0])
    try:
        return make(process_group=group, seed=rank).num_ranks, ""
    except ValueError as error:
        return make(process_group=LOCAL, seed=rank).num_ranks, str(error)


def test_ranks_outside_a_group_are_told_so() -> None:
    assert run_ranks(use_smaller_group, 2) == [
        (1, ""),
        (1, "this rank is not a member of process_group, so it cannot share its tables"),
    ]


def test_without_a_world_group_a_rank_is_alone() -> None:
    assert not dist.is_initialized()
    assert make().num_ranks == make(process_group=LOCAL).num_ranks == 1
    assert make().process_group is None
    with pytest.raises(ValueError, match="must be a ProcessGroup, None or LOCAL, not 'gloo'"):
        make(process_group="gloo")
