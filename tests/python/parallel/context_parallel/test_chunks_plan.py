# SPDX-License-Identifier: Apache-2.0
"""Plans of the chunks layout: who owns what, which keys travel, and how even the work is. No ranks are started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from context_cases import BATCHES, Batch
from headway.nn import HSTUConfig
from headway.parallel.context_parallel import ChunksPlan, Cut, GroupBatch, divide_chunks
from headway.reference.hstu_attention import hstu_mask

#: The production layer, by which work is divided.
PRODUCTION = HSTUConfig.production(dim=512, max_length=1 << 20, num_heads=4, qk_dim=128, v_dim=128)


def seen_by(plan: ChunksPlan, rank: int) -> list[Any]:
    """Returns for each sequence (own queries, keys) bool: what the rank's queries see."""
    batch, config = plan.batch, plan.config
    found = []
    for b, length in enumerate(batch.lengths.tolist()):
        mask = hstu_mask(
            length,
            length,
            causal=config.causal,
            num_contextual=int(batch.contextual[b]),
            num_targets=int(batch.targets[b]),
            window=config.window,
            full_attention_tail=config.full_attention_tail,
        )
        rows = [range(first, first + count) for first, count in plan.runs[rank, b].tolist()]
        found.append(mask[[token for run in rows for token in run]])
    return found


def test_the_example_of_the_plan_has_its_runs_and_keys() -> None:
    batch = GroupBatch(lengths=np.array([8, 4]), samples_of_ranks=(2,))
    config = BATCHES["causal"].config()
    plan = divide_chunks(batch, config, 2, cut="all")
    assert plan.tokens_of(0).tolist() == [0, 1, 6, 7, 9, 10]
    assert plan.tokens_of(1).tolist() == [2, 3, 4, 5, 8, 11]
    assert [plan.pairs_of(rank) for rank in (0, 1)] == [23 * config.num_heads] * 2
    assert plan.query_offsets(0).tolist() == [0, 4, 6]
    moves = [plan.key_move(rank) for rank in (0, 1)]
    # Rank 0 receives a2-a5 and b0; rank 1 receives a0-a1 and b1-b2, and no keys of a6-a7.
    assert [move.splits.received for move in moves] == [(6, 5), (4, 6)]
    assert moves[0].placed is not None and moves[0].placed[6:].tolist() == [2, 3, 4, 5, 8]
    assert moves[1].placed is not None and moves[1].placed[:4].tolist() == [0, 1, 9, 10]


@pytest.mark.parametrize("cut", ["needed", "all"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", BATCHES)
def test_each_token_has_one_owner_and_exactly_the_seen_keys_travel(name: str, num_ranks: int, cut: Cut) -> None:
    batch = BATCHES[name]
    plan = divide_chunks(batch.group_batch(), batch.config(), num_ranks, cut=cut)
    owned = [plan.tokens_of(rank) for rank in range(num_ranks)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(batch.num_tokens))
    moves = [plan.key_move(rank) for rank in range(num_ranks)]
    offsets = plan.batch.offsets
    for rank, move in enumerate(moves):
        assert np.all(np.diff(owned[rank]) > 0)
        seen = seen_by(plan, rank)
        assert plan.pairs_of(rank) == sum(int(each.sum()) for each in seen) * plan.config.num_heads
        wanted = {int(offsets[b]) + key for b, each in enumerate(seen) for key in each.any(0).nonzero()[:, 0].tolist()}
        assert move.placed is not None or move.num_moved == sum(move.splits.received)
        placed = set(range(move.num_moved)) if move.placed is None else set(move.placed.tolist())
        assert wanted <= placed
        # Each run of keys that travels has a key that is wanted.
        for source in range(num_ranks):
            for b, runs in enumerate(plan.runs[source].tolist()):
                for first, count in runs:
                    rows = {int(offsets[b]) + first + row for row in range(count)}
                    assert not rows & placed or (rows <= placed and rows & wanted)
        assert all(moves[other].splits.received[rank] == move.splits.sent[other] for other in range(num_ranks))


def lengths_of(kind: str, num_tokens: int) -> Any:
    """Returns lengths with about ``num_tokens`` tokens: all equal, or a long tail to the number in ``kind``."""
    name, most = kind.split()
    if name == "fixed":
        return np.full(max(num_tokens // int(most), 1), int(most))
    tail = np.random.default_rng(0).pareto(1.1, size=num_tokens // 20) * 150 + 20
    lengths = np.minimum(tail.astype(np.int64), int(most))
    return lengths[: int(np.searchsorted(np.cumsum(lengths), num_tokens)) + 1]


@pytest.mark.parametrize("share", [0, 1 / 3])
@pytest.mark.parametrize("kind", ["fixed 1024", "fixed 4096", "fixed 32768", "tail 3000", "tail 16384"])
def test_no_rank_has_more_than_one_percent_above_the_mean(kind: str, share: float) -> None:
    for num_ranks in (2, 3, 4, 8, 16):
        lengths = lengths_of(kind, 8192 * num_ranks)
        batch = GroupBatch(
            lengths=lengths, num_targets=(lengths * share).astype(np.int64), samples_of_ranks=(len(lengths),)
        )
        for cut in ("needed", "all"):
            plan = divide_chunks(batch, PRODUCTION, num_ranks, cut="all" if cut == "all" else "needed")
            tokens = plan.runs[..., 1].sum((1, 2))
            assert plan.imbalance <= 1.01, (num_ranks, cut)
            assert tokens.max() <= 1.01 * tokens.mean(), (num_ranks, cut)


def test_short_sequences_stay_whole_beside_a_long_one() -> None:
    batch = GroupBatch(lengths=np.array([100] * 40 + [8000]), samples_of_ranks=(41,))
    needed, everything = (divide_chunks(batch, PRODUCTION, 4, cut=cut) for cut in ("needed", "all"))
    assert needed.is_cut.tolist() == [False] * 40 + [True]
    assert needed.bytes_sent(0, 2) < everything.bytes_sent(0, 2)


def test_turns_make_all_ranks_send_and_receive_the_same() -> None:
    """Each direction carries 3/4 of an all-gather. Without turns the first rank would receive all, and send half."""
    batch = GroupBatch(lengths=np.full(16, 1024), samples_of_ranks=(16,))
    plan = divide_chunks(batch, PRODUCTION, 4, cut="all")
    unit = batch.num_tokens // 4 * 4 * 256 * 2  # Bytes of own keys and values.
    for rank in range(4):
        forward, backward = plan.bytes_sent(rank, 2)
        assert forward == pytest.approx(0.75 * 3 * unit, rel=0.02)
        assert backward == 2 * sum(
            plan.key_move(rank).splits.received[each] * 2048 for each in range(4) if each != rank
        )
    alone = divide_chunks(GroupBatch(lengths=np.full(1, 1024), samples_of_ranks=(1,)), PRODUCTION, 4, cut="all")
    sent = [alone.bytes_sent(rank, 2)[0] for rank in range(4)]
    assert max(sent) > 1.5 * min(sent)


def test_without_turns_a_rank_would_receive_all_keys() -> None:
    """A planted mistake: all sequences have the first turn."""
    batch = GroupBatch(lengths=np.full(16, 1024), samples_of_ranks=(16,))
    alone = GroupBatch(lengths=np.full(1, 1024), samples_of_ranks=(1,))
    turned, first = (divide_chunks(each, PRODUCTION, 4, cut="all") for each in (batch, alone))
    plans = [turned, replace(turned, runs=np.repeat(first.runs, 16, axis=1))]
    received = [[sum(plan.key_move(rank).splits.received) for rank in range(4)] for plan in plans]
    assert max(received[0]) <= 1.01 * min(received[0])
    assert max(received[1]) == batch.num_tokens and max(received[1]) > 1.3 * min(received[1])


def test_a_window_leaves_most_chunks_where_they_are() -> None:
    batch = Batch(lengths=(8000,), options={"window": 100, "max_length": 8000})
    causal = Batch(lengths=(8000,), options={"max_length": 8000})
    sent = [
        sum(divide_chunks(each.group_batch(), each.config(), 8, cut="all").bytes_sent(rank, 4)[0] for rank in range(8))
        for each in (batch, causal)
    ]
    assert sent[0] < 0.3 * sent[1]
