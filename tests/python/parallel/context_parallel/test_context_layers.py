# SPDX-License-Identifier: Apache-2.0
"""Stacks on several ranks compute what one rank computes: outputs, losses, and gradients of tokens and weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from context_cases import (
    BATCHES,
    Batch,
    dropout_keys_of,
    plan_of,
    random,
    stack_of,
    times_of,
    whole_sequences,
)
from headway.nn import HSTUConfig, HSTUStack, next_times
from headway.parallel.context_parallel import ContextParallel, ContextPlan, chunk_exchange
from headway.parallel.context_parallel.row_move import move_back
from headway.training.gradients import sum_gradients
from rank_processes import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RECOMPUTE = ("none", "norm_and_gate", "projection", "all")


def factors_of(batch: Batch, dim: int) -> Tensor:
    """Returns the weights of outputs in the loss. They are 0 for odd sequences, so counts of ranks are uneven."""
    described = batch.group_batch()
    counted = torch.from_numpy(described.sequence_of_tokens) % 2 == 0
    return random(batch.num_tokens, dim, seed=11, dtype=torch.float64) * counted[:, None]


def loss_sum(y: Tensor, factors: Tensor) -> tuple[Tensor, int]:
    """Returns the sum of the losses of some tokens, and how many have one."""
    return (y * factors).square().sum(), int(factors.any(1).sum())


def one_rank(stack: HSTUStack, x: Tensor, batch: Batch) -> list[Tensor]:
    """Returns output, loss and gradients (of tokens and weights) on one rank."""
    x = x.clone().requires_grad_()
    y = stack(x, whole_sequences(batch))
    total, count = loss_sum(y, factors_of(batch, x.shape[1]))
    loss = total / max(count, 1)
    return [y, loss, *torch.autograd.grad(loss, [x, *stack.parameters()], allow_unused=True, materialize_grads=True)]


def brought(values: Tensor, plan: ContextPlan) -> Tensor:
    rows = plan.brought_tokens
    return values[rows.start : rows.stop]


def many_ranks(stack: HSTUStack, x: Tensor, batch: Batch, context: ContextParallel, plan: ContextPlan) -> list[Tensor]:
    """Returns the same on a rank: outputs and gradients of the tokens that it brought, and sums of those of weights."""
    x = brought(x, plan).clone().requires_grad_()
    given = [*times_of(batch), dropout_keys_of(batch), factors_of(batch, x.shape[1])]
    own_x, times, query_times, keys, factors = context.shard([x, *(brought(each, plan) for each in given)], plan)
    y = stack(own_x, plan.sequences(times, query_times, dropout_keys=keys), parallel=plan)
    loss = context.mean(*loss_sum(y, factors))
    grads = list(torch.autograd.grad(loss, [x, *stack.parameters()], allow_unused=True, materialize_grads=True))
    for each in grads[1:]:
        dist.all_reduce(each)
    return [context.unshard([y], plan)[0], loss, *grads]


def check_stack(rank: int, name: str, layout: str, changes: dict[str, Any]) -> None:
    batch = BATCHES[name]
    config = batch.config(**changes)
    stack, x = stack_of(config), random(batch.num_tokens, config.dim, seed=5, dtype=torch.float64)
    expected = one_rank(stack, x, batch)
    context = ContextParallel(
        dist.group.WORLD, config, layout=layout, cut="needed" if dist.get_world_size() == 3 else "all"
    )
    plan = plan_of(context, batch, rank)
    found = many_ranks(stack, x, batch, context, plan)
    for index, (each, whole) in enumerate(zip(found, expected, strict=True)):
        wanted = brought(whole, plan) if index in (0, 2) else whole
        label = f"{name}, output {index}"
        torch.testing.assert_close(each, wanted, rtol=1e-12, atol=1e-12, msg=lambda text, at=label: f"{at}: {text}")


def check_stacks(rank: int, layout: str, changes: dict[str, Any]) -> None:
    for name in BATCHES:
        check_stack(rank, name, layout, changes)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_stack_computes_what_it_computes_on_one_rank(size: int, layout: str) -> None:
    run_ranks(check_stacks, size, layout, {"dropout": 0.3, "recompute": RECOMPUTE[size - 1]})


@pytest.mark.parametrize("layout", ["heads", "chunks", "grid(2, 4)"])
def test_a_stack_computes_the_same_on_eight_ranks_over_gloo(layout: str) -> None:
    run_ranks(check_stacks, 8, layout, {"num_heads": 9}, backend="gloo")


def check_variants(rank: int, layout: str) -> None:
    biases: dict[str, Any] = {"position_bias": True, "num_time_buckets": 9, "dropout": 0.2}
    production = {field: getattr(HSTUConfig.production(dim=6, max_length=64), field) for field in ("affine", "gate")}
    for recompute in RECOMPUTE:
        for attention in ("kernel", "reference"):
            changes = {"recompute": recompute, "attention": attention, "activated": "gate", "projection_bias": True}
            check_stack(rank, "all_masks", layout, biases | production | changes)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
def test_all_levels_of_recomputation_and_the_reference_agree(layout: str) -> None:
    run_ranks(check_variants, 2, layout)


def check_batch_everywhere(rank: int, layout: str) -> None:
    batch = BATCHES["biases"]
    config = batch.config()
    stack, x = stack_of(config), random(batch.num_tokens, config.dim, seed=5, dtype=torch.float64)
    context = ContextParallel(dist.group.WORLD, config, layout=layout)
    plan = context.plan(
        batch.lengths, num_targets=batch.num_targets, num_contextual=batch.num_contextual, samples="all"
    )
    found = many_ranks(stack, x, batch, context, plan)
    dist.all_reduce(found[2])  # Each rank has the part of its own tokens.
    for each, whole in zip(found, one_rank(stack, x, batch), strict=True):
        torch.testing.assert_close(each, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
def test_ranks_may_all_bring_the_whole_batch(layout: str) -> None:
    run_ranks(check_batch_everywhere, 2, layout)


def check_means(rank: int) -> tuple[float, float]:
    """Returns the loss by ``mean()``, and the average of the means over each rank's own tokens."""
    batch = BATCHES["causal"]
    context = ContextParallel(dist.group.WORLD, batch.config())
    plan = plan_of(context, batch, rank)
    own = plan.own_tokens
    total, count = loss_sum(torch.ones(len(own), 6), factors_of(batch, 6)[own])
    mean_of_own = total / max(count, 1)
    dist.all_reduce(mean_of_own)
    return float(context.mean(total, count)), float(mean_of_own) / dist.get_world_size()


def test_the_mean_over_own_tokens_is_another_loss() -> None:
    batch = BATCHES["causal"]
    total, count = loss_sum(torch.ones(batch.num_tokens, 6), factors_of(batch, 6))
    for loss, mean_of_means in run_ranks(check_means, 4):
        assert loss == pytest.approx(float(total) / count, rel=1e-12)
        assert abs(mean_of_means - loss) > 1e-3 * loss


def check_moves(rank: int, layout: str) -> None:
    batch = BATCHES["causal"]
    context = ContextParallel(dist.group.WORLD, batch.config(), layout=layout, cut="all")
    plan = plan_of(context, batch, rank)
    size, own = batch.num_tokens, plan.own_tokens
    tensors = [
        torch.arange(size),
        torch.arange(size).to(torch.bfloat16)[:, None] * torch.ones(3, dtype=torch.bfloat16),
        torch.arange(size) % 3 == 0,
        random(size, 2, 2, seed=1, dtype=torch.float64),
        torch.arange(size, dtype=torch.int8),
    ]
    for some in (tensors, tensors[:1], tensors[1:2], []):
        moved = context.shard([brought(each, plan) for each in some], plan)
        for each, whole in zip(moved, some, strict=True):
            assert torch.equal(each, whole[own]) and each.dtype == whole.dtype
        for each, whole in zip(context.unshard(moved, plan), some, strict=True):
            assert torch.equal(each, brought(whole, plan))
    described = batch.group_batch()
    assert plan.own_places.tolist() == described.places[own].tolist()
    assert plan.own_samples.tolist() == described.sequence_of_tokens[own].tolist()


@pytest.mark.parametrize(("backend", "layout"), [("gloo", "heads"), ("headway", "chunks")])
def test_tensors_of_all_types_move_to_their_owners_and_back(backend: str, layout: str) -> None:
    run_ranks(check_moves, 3, layout, backend=backend)


def check_times_after_the_cut(rank: int) -> list[bool]:
    """Returns whether outputs are those of one rank: with query times made before the cut, and after it."""
    batch = BATCHES["biases"]
    config = batch.config()
    stack, x = stack_of(config), random(batch.num_tokens, config.dim, seed=5, dtype=torch.float64)
    expected = stack(x, whole_sequences(batch))
    context = ContextParallel(dist.group.WORLD, config)
    plan = plan_of(context, batch, rank)
    own_x, times, query_times = context.shard([brought(each, plan) for each in (x, *times_of(batch))], plan)
    late = next_times(times, torch.tensor([0, len(times)]))
    return [
        torch.allclose(stack(own_x, plan.sequences(times, each), parallel=plan), expected[plan.own_tokens], atol=1e-12)
        for each in (query_times, late)
    ]


def test_query_times_that_are_made_after_the_cut_are_caught() -> None:
    assert run_ranks(check_times_after_the_cut, 2) == [[True, False]] * 2


def check_dropped_gradients(rank: int) -> list[bool]:
    """Returns whether gradients of tokens are right: as they are, and without those of keys of the low chunks."""
    batch = BATCHES["causal"]
    config = batch.config()
    stack, x = stack_of(config), random(batch.num_tokens, config.dim, seed=5, dtype=torch.float64)
    expected = one_rank(stack, x, batch)[2]
    context = ContextParallel(dist.group.WORLD, config, layout="chunks", cut="all")
    results = []
    for is_dropped in (False, True):
        plan = plan_of(context, batch, rank)
        is_low = plan.own_places < torch.from_numpy(batch.group_batch().lengths // 2)[plan.own_samples]

        def returned(grads: Any, *move: Any, is_dropped: bool = is_dropped, is_low: Tensor = is_low) -> list[Tensor]:
            found = move_back(grads, *move)
            return [each * ~is_low[:, None, None] for each in found] if is_dropped else found

        with mock.patch.object(chunk_exchange, "move_back", returned):
            found = many_ranks(stack, x, batch, context, plan)[2]
        results.append(torch.allclose(found, brought(expected, plan), atol=1e-12))
    return results


def test_gradients_of_low_chunks_that_are_dropped_are_caught() -> None:
    found = run_ranks(check_dropped_gradients, 2)
    assert [each[0] for each in found] == [True, True] and False in [each[1] for each in found]


def check_gradients_through_moves(rank: int, layout: str) -> None:
    batch = BATCHES["causal"]
    context = ContextParallel(dist.group.WORLD, batch.config(), layout=layout, cut="all")
    plan = plan_of(context, batch, rank)
    x, factors = (brought(random(batch.num_tokens, 3, seed=i, dtype=torch.float64), plan) for i in (1, 2))
    x = x.clone().requires_grad_()
    moved = context.unshard([context.shard([x], plan)[0] ** 2], plan)[0]
    (grad,) = torch.autograd.grad((moved * factors).sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach() * factors, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
def test_gradients_move_there_and_back(layout: str) -> None:
    run_ranks(check_gradients_through_moves, 3, layout)


def check_second_derivatives(rank: int, layout: str) -> None:
    """Compares the product of the second derivatives of a loss and a vector."""
    batch = Batch(lengths=(3, 2, 4))
    config = batch.config(attention="reference", recompute="none")
    stack, x = stack_of(config, num_layers=1), random(9, config.dim, seed=5, dtype=torch.float64)
    vector = random(9, config.dim, seed=6, dtype=torch.float64)

    def product(inputs: Tensor, y: Tensor, vector: Tensor) -> Tensor:
        grad = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)[0]
        return torch.autograd.grad((grad * vector).sum(), inputs)[0]

    whole = x.clone().requires_grad_()
    expected = product(whole, stack(whole, whole_sequences(batch)), vector)
    context = ContextParallel(dist.group.WORLD, config, layout=layout, cut="all")
    plan = plan_of(context, batch, rank)
    inputs = brought(x, plan).clone().requires_grad_()
    y = stack(context.shard([inputs], plan)[0], plan.sequences(), parallel=plan)
    found = product(inputs, y, brought(vector, plan))
    torch.testing.assert_close(found, brought(expected, plan), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["heads", "chunks"])
def test_the_plain_layer_has_second_derivatives_on_ranks(layout: str) -> None:
    run_ranks(check_second_derivatives, 2, layout)


def check_data_parallel(rank: int) -> None:
    """Two groups of two ranks have a batch each; DDP adds gradients over all four."""
    batches = [Batch(lengths=(5, 3, 17, 9)), Batch(lengths=(2, 30))]
    config = batches[0].config()
    alone = stack_of(config)
    xs = [random(each.num_tokens, config.dim, seed=5 + i, dtype=torch.float64) for i, each in enumerate(batches)]
    sums, counts = zip(
        *(
            loss_sum(alone(x, whole_sequences(each)), factors_of(each, config.dim))
            for x, each in zip(xs, batches, strict=True)
        ),
        strict=True,
    )
    expected = torch.stack(sums).sum() / sum(counts)
    expected.backward()

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    context = ContextParallel(mesh["cp"], config)
    batch, x = batches[rank // 2], xs[rank // 2]
    stack = stack_of(config)
    parallel: Any = DistributedDataParallel(stack)
    parallel.register_comm_hook(dist.group.WORLD, sum_gradients)
    plan = plan_of(context, batch, rank % 2)
    own_x, factors = context.shard([brought(each, plan) for each in (x, factors_of(batch, config.dim))], plan)
    loss = context.mean(*loss_sum(parallel(own_x, plan.sequences(), parallel=plan), factors))
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(stack.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-12, atol=1e-12)


def test_groups_with_different_batches_add_up_to_one_step() -> None:
    run_ranks(check_data_parallel, 4)


def check_prefetched_plans(rank: int) -> list[int]:
    """Trains while a thread plans the next batch; returns the tokens of each batch."""
    lengths = [[5 + step, 7 * rank, 20 - step] for step in range(8)]
    config = Batch().config()
    stack, context = stack_of(config), ContextParallel(dist.group.WORLD, config)
    sizes = []
    with ThreadPoolExecutor(1) as thread:
        planned = thread.submit(context.plan, lengths[0])
        for step in range(8):
            plan = planned.result()
            if step < 7:
                planned = thread.submit(context.plan, lengths[step + 1])
            (x,) = context.shard([torch.ones(sum(lengths[step]), config.dim, dtype=torch.float64)], plan)
            y = stack(x.requires_grad_(), plan.sequences(), parallel=plan)
            context.mean(y.square().sum(), len(y)).backward()
            sizes.append(plan.batch.num_tokens)
    return sizes


def test_a_thread_may_plan_while_ranks_train() -> None:
    assert run_ranks(check_prefetched_plans, 2) == [[57] * 8] * 2


def check_fsdp(rank: int) -> None:
    batch = BATCHES["targets"]
    config = batch.config()
    stack, x = stack_of(config), random(batch.num_tokens, config.dim, seed=5, dtype=torch.float64)
    _, expected, _, *grads = one_rank(stack, x, batch)
    names = [name for name, _ in stack.named_parameters()]
    sharded: Any = fully_shard(stack, mesh=init_device_mesh("cpu", (2,)))
    sharded.set_gradient_divide_factor(1.0)  # Gradients are parts of a sum.
    context = ContextParallel(dist.group.WORLD, config)
    plan = plan_of(context, batch, rank)
    own_x, factors = context.shard([brought(each, plan) for each in (x, factors_of(batch, config.dim))], plan)
    loss = context.mean(*loss_sum(sharded(own_x, plan.sequences(), parallel=plan), factors))
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    for name, wanted in zip(names, grads, strict=True):
        found: Any = sharded.get_parameter(name).grad
        torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-12, atol=1e-12)


def test_fsdp_adds_gradients_that_are_parts_of_a_sum() -> None:
    run_ranks(check_fsdp, 2, backend="gloo")
