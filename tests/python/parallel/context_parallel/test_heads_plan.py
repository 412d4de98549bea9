# SPDX-License-Identifier: Apache-2.0
"""Plans of the heads layout: shares, splits, pairs and bytes, without any ranks."""

from __future__ import annotations

import numpy as np
import pytest
from context_cases import BATCHES
from headway.parallel.context_parallel import HeadsPlan, visible_keys
from headway.parallel.context_parallel.row_move import move_to_all, move_to_owners
from headway.reference.hstu_attention import hstu_mask


@pytest.mark.parametrize("name", BATCHES)
def test_visible_keys_are_counted_as_the_mask_has_them(name: str) -> None:
    batch = BATCHES[name]
    config, described = batch.config(), batch.group_batch()
    expected = [
        hstu_mask(
            length,
            length,
            causal=config.causal,
            num_contextual=int(described.contextual[b]),
            num_targets=int(described.targets[b]),
            window=config.window,
            full_attention_tail=config.full_attention_tail,
        )
        .sum(1)
        .tolist()
        for b, length in enumerate(batch.lengths)
    ]
    assert visible_keys(described, config).tolist() == [each for row in expected for each in row]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("num_ranks", range(1, 9))
def test_each_token_and_head_has_one_rank_and_splits_fit_each_other(num_ranks: int, num_heads: int) -> None:
    if num_ranks > num_heads:
        with pytest.raises(ValueError, match=f"{num_ranks} ranks cannot divide {num_heads} heads"):
            HeadsPlan(num_ranks=num_ranks, num_tokens=5, num_heads=num_heads)
        return
    for num_tokens in (0, 1, 5, 64, 1001):
        plan = HeadsPlan(num_ranks=num_ranks, num_tokens=num_tokens, num_heads=num_heads)
        ranks = range(num_ranks)
        assert [token for rank in ranks for token in plan.tokens_of(rank)] == list(range(num_tokens))
        assert [head for rank in ranks for head in plan.heads_of(rank)] == list(range(num_heads))
        sizes = [len(plan.tokens_of(rank)) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1
        for splits in (plan.to_heads, plan.to_tokens):
            of_ranks = [splits(rank, 3) for rank in ranks]
            assert all(of_ranks[a].sent[b] == of_ranks[b].received[a] for a in ranks for b in ranks)


def test_the_example_of_the_plan_has_its_pairs() -> None:
    batch, config = BATCHES["causal"].group_batch(), BATCHES["causal"].config()
    example = type(batch)(lengths=np.array([8, 4]), samples_of_ranks=(2,))
    plan = HeadsPlan(num_ranks=2, num_tokens=12, num_heads=4)
    assert (plan.tokens_of(0), plan.heads_of(1)) == (range(6), range(2, 4))
    assert [plan.pairs_of(rank, example, config) for rank in (0, 1)] == [92, 92]
    uneven = HeadsPlan(num_ranks=2, num_tokens=12, num_heads=3)
    assert [uneven.pairs_of(rank, example, config) for rank in (0, 1)] == [46, 92]
    assert uneven.imbalance == pytest.approx(4 / 3)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_rank_sends_four_units_times_the_share_of_others(num_ranks: int) -> None:
    config = BATCHES["causal"].config(qk_dim=16, v_dim=16)
    plan = HeadsPlan(num_ranks=num_ranks, num_tokens=1024, num_heads=config.num_heads)
    unit = 1024 // num_ranks * config.num_heads * 16 * 2  # Bytes of queries alone.
    expected = 4 * unit * (num_ranks - 1) // num_ranks
    for rank in range(num_ranks):
        assert plan.bytes_sent(rank, config, element_bytes=2) == (expected, expected)


def test_rows_move_to_owners_that_begin_anywhere() -> None:
    brought = [range(7), range(7, 7), range(7, 12)]
    moves = [move_to_owners(brought, [np.arange(r * 4, r * 4 + 4) for r in range(3)], rank) for rank in range(3)]
    assert [move.splits.sent for move in moves] == [(4, 3, 0), (0, 0, 0), (0, 1, 4)]
    assert [move.splits.received for move in moves] == [(4, 0, 0), (3, 0, 1), (0, 0, 4)]
    assert all(move.sent is None and move.placed is None for move in moves)


def test_rows_move_to_owners_of_scattered_rows() -> None:
    brought, owned = [range(5), range(5, 8)], [np.array([0, 3, 4, 6]), np.array([1, 2, 5, 7])]
    first, second = (move_to_owners(brought, owned, rank) for rank in range(2))
    assert first.sent is not None and first.sent.tolist() == [0, 3, 4, 1, 2] and first.splits.sent == (3, 2)
    assert second.sent is not None and second.sent.tolist() == [1, 0, 2] and second.splits.sent == (1, 2)
    assert (first.splits.received, second.splits.received) == ((3, 1), (2, 2))
    everywhere = move_to_all(owned, 1)
    assert everywhere.sent is not None and everywhere.sent.tolist() == [0, 1, 2, 3] * 2
    assert everywhere.placed is not None and everywhere.placed.tolist() == [0, 3, 4, 6, 1, 2, 5, 7]
