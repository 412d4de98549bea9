# SPDX-License-Identifier: Apache-2.0
"""Plans of batches: equal to the reference, balanced as the method promises, within limits, and refused where wrong."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from headway import ops, reference
from headway.ops.batch_plan import Method
from torch import Tensor

METHODS: tuple[Method, ...] = get_args(Method)
HUGE = 2**62


def lengths_of(num_samples: int, *, seed: int = 0) -> Tensor:
    """Lognormal lengths: median 8,591, sigma 0.8, clipped at 21,000."""
    random = torch.Generator().manual_seed(seed)
    return (8591 * torch.exp(0.8 * torch.randn(num_samples, generator=random))).clamp(1, 21_000).long()


def sums(ranks: Tensor, values: Tensor, num_ranks: int) -> Tensor:
    return torch.zeros(num_ranks, dtype=torch.int64).index_add_(0, ranks, values)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(40))
def test_plans_are_those_of_the_reference(method: Method, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=random))

    num_samples, num_ranks = draw(60), 1 + draw(9)
    weights = torch.randint(0, 1 + draw(40), (num_samples,), generator=random)  # Small numbers give ties and zeros.
    tokens = torch.randint(0, 30, (num_samples,), generator=random)
    limit = 0 if seed % 2 else int(tokens.sum()) // num_ranks + 1 + draw(40)
    options = {"method": method, "tokens": tokens, "max_tokens": limit, "step": seed}
    try:
        expected = reference.plan_batches(weights, num_ranks, **options)
    except ValueError:
        with pytest.raises(ValueError, match="no rank has room for sample"):
            ops.plan_batches(weights, num_ranks, **options)
        return
    found = ops.plan_batches(weights, num_ranks, **options)
    assert torch.equal(found, expected)
    assert not limit or int(sums(found, tokens, num_ranks).max()) <= limit
    counts = torch.bincount(found, minlength=num_ranks)
    assert not method.startswith("fixed") or int(counts.max() - counts.min()) <= 1


@pytest.mark.parametrize(
    ("method", "of_rank", "most_idle"),
    [
        ("fixed_greedy", 8, 0.006),
        ("fixed_zigzag", 8, 0.08),
        ("variable_greedy", 8, 0.006),
        ("fixed_greedy", 32, 0.001),
        ("fixed_zigzag", 32, 0.005),
        ("variable_segments", 32, 0.08),
    ],
)
def test_ranks_are_idle_for_a_small_part_of_a_step(method: Method, of_rank: int, most_idle: float) -> None:
    # 64 ranks. Without a plan they are idle for 45% (8 samples a rank) and 30% (32) of the time.
    idle = []
    for seed in range(5):
        lengths = lengths_of(64 * of_rank, seed=seed)
        weights = lengths * (1024 + lengths)
        of_ranks = sums(ops.plan_batches(weights, 64, method=method), weights, 64).double()
        idle.append(1 - float(of_ranks.mean() / of_ranks.max()))
    assert sum(idle) / len(idle) < most_idle


@pytest.mark.parametrize("method", METHODS)
def test_shares_rotate_over_ranks(method: Method) -> None:
    weights = lengths_of(40)
    first = ops.plan_batches(weights, 7, method=method)
    for step in (1, 6, 7, 700_001):
        assert torch.equal(ops.plan_batches(weights, 7, method=method, step=step), (first + step) % 7)


@pytest.mark.parametrize("method", METHODS)
def test_unusual_weights_have_plans(method: Method) -> None:
    def plan(*weights: int) -> list[int]:
        return ops.plan_batches(torch.tensor(weights, dtype=torch.int64), 3, method=method).tolist()

    assert plan() == []
    assert sorted(plan(5, 5)) == [0, 1], "fewer samples than ranks"
    assert sorted(plan(0, 0, 0, 0, 0, 0)) == [0, 0, 1, 1, 2, 2], "samples without weight are spread"
    heavy = plan(HUGE, 1, 1, 1, 1, 1)
    if not method.startswith("fixed"):
        assert heavy.count(heavy[0]) == 1, "a sample heavier than all others is alone"


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([1, -2], {}, "sample 1 has -2 weight"),
        ([HUGE, HUGE], {}, "the sum of weight does not fit 63 bits"),
        ([1, 2], {"method": "best"}, "there is no method best"),
        ([1, 2], {"max_tokens": 5}, "max_tokens needs tokens"),
        ([1, 2], {"tokens": torch.tensor([1])}, "of one size"),
        ([1, 2], {"tokens": torch.tensor([1, -1])}, "sample 1 has -1 tokens"),
        (
            [1, 2],
            {"tokens": torch.tensor([9, 1]), "max_tokens": 5},
            "no rank has room for sample 0 of 9 tokens: 2 ranks",
        ),
        ([1.0, 2.0], {}, "int64"),
        ([1, 2], {"num_ranks": 0}, "num_ranks is at least 1"),
    ],
)
def test_wrong_arguments_are_refused(weights: list[float], options: dict[str, object], message: str) -> None:
    arguments = {"num_ranks": 2} | options
    with pytest.raises(ValueError, match=message):
        ops.plan_batches(torch.tensor(weights), **arguments)  # type: ignore[arg-type]


def test_a_limit_that_a_method_misses_is_met_by_another_order() -> None:
    # By weight the samples of 4 tokens meet in one rank, and the second one of 6 finds no room.
    weights, tokens = torch.tensor([5, 3, 1, 1]), torch.tensor([6, 4, 4, 6])
    for method in METHODS:
        ranks = ops.plan_batches(weights, 2, method=method, tokens=tokens, max_tokens=10)
        assert sums(ranks, tokens, 2).tolist() == [10, 10]
