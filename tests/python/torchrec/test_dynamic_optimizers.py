# SPDX-License-Identifier: Apache-2.0
"""TorchRec's optimizers, learning rates and schedulers apply to dynamic tables, or are rejected."""

from __future__ import annotations

from typing import Any

import headway.torchrec
import pytest
import torch
from dynamic_models import SEQUENCE, Model, make_batch, shard_model, sharded_collection, vectors_of
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from headway.embedding import Adagrad, Adam, RowWiseAdagrad, RowWiseAdam, Sgd, Uniform
from headway.torchrec import DynamicTable
from headway.torchrec.optimizers import optimizer_of
from rank_processes import run_ranks
from torchrec.optim import LAMB, PartialRowWiseAdam
from torchrec.optim import RowWiseAdagrad as TheirRowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.warmup import WarmupOptimizer, WarmupPolicy, WarmupStage


def moves(parallel: Any, rank: int) -> float:
    """Returns the largest change of an embedding element in one step."""
    before = vectors_of(parallel)
    loss, _ = parallel(make_batch(rank, 0, everything=True))
    loss.backward()
    after = vectors_of(parallel)
    return max(float((after[table] - before[table]).abs().max()) for table in before)


def train_with_schedule(rank: int) -> list[float]:
    parallel = shard_model(SEQUENCE, Adam(lr=0.5))
    optimizer = parallel.fused_optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1**step)
    steps = []
    for _ in range(3):
        optimizer.zero_grad()
        steps.append(moves(parallel, rank))
        optimizer.step()
        scheduler.step()
    return steps


def test_a_scheduler_sets_the_rate_of_tables() -> None:
    """A step of Adam changes elements by about the learning rate: 0.5, 0.05, then 0.005."""
    first, second, third = run_ranks(train_with_schedule, 2)[0]
    assert 0.45 < first < 0.55
    assert 0.02 < second < 0.07
    assert 0.002 < third < 0.007


def train_with_warm_up(rank: int) -> list[float]:
    parallel = shard_model(SEQUENCE, Adam(lr=0.5))
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(parallel.named_parameters())), lambda each: torch.optim.SGD(each, lr=0.0)
    )
    both = CombinedOptimizer([parallel.fused_optimizer, dense])
    optimizer = WarmupOptimizer(both, [WarmupStage(WarmupPolicy.LINEAR, max_iters=10, value=0.1)], lr=0.5)
    names = set(parallel.fused_optimizer.params)
    assert names == {"embeddings.embeddings.item.weight", "embeddings.embeddings.user.weight"}
    steps = []
    for _ in range(2):
        optimizer.zero_grad()
        steps.append(moves(parallel, rank))
        optimizer.step()
    return steps


def test_optimizers_of_torchrec_wrap_that_of_tables() -> None:
    first, second = run_ranks(train_with_warm_up, 2)[0]
    assert 0 < first < 0.2 and first < second


def shard_with(optimizer_class: Any, arguments: dict[str, Any], settings: DynamicTable | None = None) -> Any:
    model = Model(SEQUENCE)
    apply_optimizer_in_backward(optimizer_class, model.embeddings.parameters(), arguments)
    table = settings or DynamicTable(initializer=Uniform(-1, 1))
    return headway.torchrec.shard(model, {"item": table, "user": table})


def optimizers_in_backward(rank: int) -> None:
    for theirs, arguments, ours in (
        (torch.optim.SGD, {"lr": 0.3}, Sgd(lr=0.3)),
        (torch.optim.Adagrad, {"lr": 0.3, "eps": 1e-6}, Adagrad(lr=0.3, eps=1e-6)),
        (torch.optim.Adam, {"lr": 0.3, "betas": (0.8, 0.9)}, Adam(lr=0.3, betas=(0.8, 0.9))),
        (TheirRowWiseAdagrad, {"lr": 0.3}, RowWiseAdagrad(lr=0.3)),
        (PartialRowWiseAdam, {"lr": 0.3, "weight_decay": 0.1}, RowWiseAdam(lr=0.3, weight_decay=0.1)),
    ):
        parallel = shard_with(theirs, arguments)
        (kernel,) = sharded_collection(parallel).kernels()
        assert kernel.merged.config.optimizer == ours
        assert parallel.fused_optimizer.param_groups[0]["lr"] == 0.3
        assert moves(parallel, rank) > 0


def test_optimizers_applied_in_backward_are_those_of_tables() -> None:
    run_ranks(optimizers_in_backward, 1)


def refuse(rank: int) -> None:
    with pytest.raises(ValueError, match=r"table item: no optimizer of dynamic tables is like lamb"):
        shard_with(LAMB, {"lr": 0.1})
    with pytest.raises(ValueError, match="table item: dynamic tables have nothing for momentum"):
        shard_with(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    with pytest.raises(ValueError, match="is applied in backward, but DynamicTable has another one"):
        shard_with(torch.optim.SGD, {"lr": 0.1}, DynamicTable(optimizer=Sgd(lr=0.1)))
    with pytest.raises(ValueError, match="table item has no optimizer"):
        shard_model(SEQUENCE, None)


def test_what_tables_cannot_do_is_refused() -> None:
    run_ranks(refuse, 1)


def test_numbers_by_the_names_of_fbgemm_are_taken() -> None:
    asked = {"optimizer": EmbOptimType.ADAM, "learning_rate": 0.2, "beta1": 0.7, "beta2": 0.8, "eps": 1e-3}
    assert optimizer_of(asked, "t") == Adam(lr=0.2, betas=(0.7, 0.8), eps=1e-3)
    assert optimizer_of({"output_dtype": None}, "t") is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"optimizer": EmbOptimType.ADAM}, "Adam needs a learning rate"),
        ({"optimizer": EmbOptimType.SGD, "learning_rate": 1, "eps": 0.1}, "nothing for eps"),
        ({"learning_rate": 1.0}, "nothing for lr"),
        ({"stochastic_rounding": True, "cache_load_factor": 0.1}, "nothing for cache_load_factor, stochastic_rounding"),
    ],
)
def test_parameters_without_a_counterpart_are_named(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimizer_of(asked, "t")
