# SPDX-License-Identifier: Apache-2.0
"""``read_ahead()`` changes no bit of losses and tables, whatever a table does beside updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from cuda_ranks import num_gpus, run_on_gpus, take_device
from headway.embedding import Eviction, clip_grad_norm_
from rank_processes import BACKENDS, run_ranks
from table_cases import OPTIMIZERS, make_batch, make_tables, move_batch, real_loss, records_of

STEPS = 300
LIMITS: dict[str, Any] = {
    "min_count": 2,
    "hot_count": 6,
    "time_to_live": 9,
    "max_rows": 400,
    "eviction": Eviction(policy="lru", high_water=0.4, low_water=0.3),
}


def batch_of(rank: int, step: int, part: int) -> Any:
    """Small ids are in every step; others move on, so rows are evicted."""
    batch = make_batch(1_000 * step + 10 * rank + part, num_ids=60)
    for name, (values, *rest) in batch.items():
        batch[name] = (torch.where(values % 2 == 0, values % 7, values + step), *rest)
    return batch


def train(
    rank: int,
    optimizer: str,
    *,
    ahead: bool,
    device: str = "cpu",
    parts: int = 1,
    limits: bool = False,
    clip: float = 0.0,
    steps: int = STEPS,
) -> tuple[list[float], Any, dict[str, int]]:
    """Returns losses, the records of this rank, and its traffic."""
    tables = make_tables(OPTIMIZERS[optimizer], LIMITS if limits else None, prioritized=ahead, device=device)

    def begin(step: int) -> list[Any]:
        return [tables.begin(move_batch(batch_of(rank, step, part), device)) for part in range(parts)]

    losses: list[float] = []
    pending = begin(0)
    for step in range(steps):
        following = []
        for part, batch in enumerate(pending):
            loss = 0.01 * real_loss(tables(batch))
            losses.append(float(loss.detach()))
            if part == parts - 1 and step + 1 < steps:
                following = begin(step + 1)
                if ahead:
                    tables.read_ahead(following)
            loss.backward()
        if clip:
            clip_grad_norm_([], clip, tables=[tables])
        tables.optimizer.step()
        pending = following
    tables.drain()
    return losses, records_of(tables), tables.statistics()["traffic"]


def train_both(rank: int, cases: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [[train(rank, optimizer, ahead=ahead, **options) for ahead in (False, True)] for optimizer, options in cases]


def same_records(first: Any, second: Any) -> bool:
    return all(
        numpy.array_equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_losses_and_tables_have_the_bits_of_the_plain_schedule(num_ranks: int, backend: str) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [(each, {"limits": True}) for each in OPTIMIZERS]
    cases += [("adam", {"parts": 2}), ("row_wise_adagrad", {"parts": 3, "limits": True, "steps": 100})]
    if backend != "headway":
        cases = cases[3:4]
    for results in run_ranks(train_both, num_ranks, cases, backend=backend):
        for (optimizer, options), (plain, ahead) in zip(cases, results, strict=True):
            assert plain[0] == ahead[0], (optimizer, options)
            assert same_records(plain[1], ahead[1]), (optimizer, options)
            assert plain[2]["collisions"] == 0
            assert ahead[2]["collisions"] >= STEPS / num_ranks, "steps have ids in common"
            if "limits" not in options:  # Tables with a limit read keys without a row late, too.
                assert ahead[2]["keys_ahead"] > 1.5 * ahead[2]["collisions"]


def train_on_gpu(rank: int, cases: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    device = str(take_device(rank))
    return train_both(rank, [(optimizer, options | {"device": device}) for optimizer, options in cases])


@pytest.mark.gpu
@pytest.mark.skipif(num_gpus() == 0, reason="this host has no GPU")
@pytest.mark.parametrize("backend", ["headway", "nccl"])
def test_on_gpus_too(backend: str) -> None:
    if backend == "nccl" and num_gpus() < 2:
        pytest.skip("NCCL needs a GPU for each rank")
    cases: list[tuple[str, dict[str, Any]]] = [(each, {"limits": True}) for each in OPTIMIZERS]
    cases += [("adam", {"parts": 2, "steps": 100}), ("row_wise_adagrad", {"parts": 3, "limits": True, "steps": 100})]
    for results in run_on_gpus(train_on_gpu, 2, cases, backend=backend):
        for case, (plain, ahead) in zip(cases, results, strict=True):
            assert plain[0] == ahead[0] and same_records(plain[1], ahead[1]), case
            assert ahead[2]["collisions"] > 0


def clipped(rank: int) -> Any:
    return train_both(rank, [("sgd", {"clip": 0.5, "steps": 40, "parts": 2})])


def test_clipping_gets_all_gradients() -> None:
    for (plain, ahead), *_ in run_ranks(clipped, 2):
        assert plain[0] == pytest.approx(ahead[0], rel=1e-5), "sums of squares are in another order"


def use_between_steps(rank: int, folder: str) -> Any:
    """Uses a collection in all ways between steps; returns errors, and records before and after a checkpoint."""
    tables = make_tables(OPTIMIZERS["adam"], prioritized=True)
    errors = []
    pending = tables.begin(batch_of(rank, 0, 0))
    for step in range(3):
        loss = real_loss(tables(pending))
        pending = tables.begin(batch_of(rank, step + 1, 0))
        tables.read_ahead([pending])
        try:
            tables.read_ahead([pending])
        except ValueError as error:
            errors.append(str(error))
        loss.backward()
        tables.optimizer.step()
        try:
            tables.rows("items")
        except RuntimeError as error:
            errors.append(str(error))
    with torch.no_grad():
        evaluated = real_loss(tables.eval()(batch_of(rank, 0, 0)))  # Drains.
    assert len(tables.rows("items")[0]) > 0
    tables.train()
    real_loss(tables(pending)).backward()  # The batch that was read ahead, and no other.
    tables.optimizer.step()
    tables.save(folder)
    saved = records_of(tables)
    tables.load(folder)
    return errors, float(evaluated), same_records(saved, records_of(tables))


def test_other_calls_apply_what_is_deferred_or_say_so(tmp_path: Path) -> None:
    for errors, evaluated, is_same in run_ranks(use_between_steps, 2, str(tmp_path)):
        twice = "read_ahead() was called in this step before"
        deferred = "updates of rows are deferred: call drain() on all ranks before"
        assert errors == [twice, deferred] * 3
        assert evaluated > 0
        assert is_same


def skip_a_step(rank: int) -> list[float]:
    tables = make_tables(OPTIMIZERS["sgd"], prioritized=True)
    losses = []
    pending = tables.begin(batch_of(rank, 0, 0))
    for step in range(4):
        loss = real_loss(tables(pending))
        losses.append(float(loss.detach()))
        pending = tables.begin(batch_of(rank, 0, 0))
        tables.read_ahead([pending])
        loss.backward()
        if step % 2 == 0:
            tables.optimizer.zero_grad()  # A scaler does so if gradients have overflowed.
        else:
            tables.optimizer.step()
    return losses


def test_a_skipped_step_skips_both_parts() -> None:
    for losses in run_ranks(skip_a_step, 2):
        assert losses[0] == losses[1] != losses[2] == losses[3]


def misuse(rank: int, folder: str) -> list[str]:
    tables = make_tables(OPTIMIZERS["sgd"], prioritized=True)
    first, second = (tables.begin(batch_of(rank, step, 0)) for step in range(2))
    loss = real_loss(tables(first))
    errors = []

    def expect_error(action: Any) -> None:
        try:
            action()
            errors.append("")
        except (ValueError, RuntimeError) as error:
            errors.append(str(error))

    expect_error(lambda: tables.read_ahead([None]))  # type: ignore[list-item]
    expect_error(lambda: tables.read_ahead([second, second]))
    tables.read_ahead([second])
    loss.backward()
    expect_error(lambda: tables(second))
    tables.optimizer.step()
    tables.drain()
    ids, embeddings = tables.rows("items")
    expect_error(lambda: tables.insert_rows("items", ids, embeddings))
    tables.save(folder)
    tables.load(folder)  # Gives up the batch that was read ahead.
    expect_error(lambda: tables(second))
    real_loss(tables(batch_of(rank, 1, 0))).backward()
    tables.optimizer.step()
    return errors


def test_misuse_is_told_on_all_ranks(tmp_path: Path) -> None:
    for none, twice, early, ahead, given_up in run_ranks(misuse, 2, str(tmp_path)):
        assert "read_ahead() needs batches that have begun, not None" in none
        assert "a batch is given twice" in twice
        assert "gradients of the present one are neither applied nor dropped" in early
        assert "call forget_ahead() on all ranks before" in ahead
        assert "has failed" in given_up or "could not be" in given_up


def two_forward_passes_first(rank: int) -> list[list[float]]:
    losses: list[list[float]] = []
    for ahead in (False, True):
        tables = make_tables(OPTIMIZERS["adam"], prioritized=ahead)
        losses.append([])
        pending = [tables.begin(batch_of(rank, 0, part)) for part in range(2)]
        for step in range(20):
            of_parts = [0.01 * real_loss(tables(batch)) for batch in pending]
            losses[-1] += [float(each.detach()) for each in of_parts]
            pending = [tables.begin(batch_of(rank, step + 1, part)) for part in range(2)]
            of_parts[0].backward()
            if ahead:
                tables.read_ahead(pending)
            of_parts[1].backward()
            tables.optimizer.step()
    return losses


def test_a_backward_pass_may_come_before() -> None:
    for plain, ahead in run_ranks(two_forward_passes_first, 2):
        assert plain == ahead


def overflow(rank: int) -> list[bool]:
    """Returns for each step whether this rank's scaler sees a gradient that is not finite. Rank 1 alone has one."""
    tables = make_tables(OPTIMIZERS["sgd"], prioritized=True)
    seen = []
    pending = tables.begin(batch_of(rank, 0, 0))
    for step in range(3):
        loss = real_loss(tables(pending)) * (torch.inf if rank == 1 and step == 1 else 1.0)
        pending = tables.begin(batch_of(rank, step + 1, 0))
        tables.read_ahead([pending])
        loss.backward()
        anchors = [group["params"][0] for group in tables.optimizer.param_groups]
        seen.append(any(anchor.grad is not None and not bool(anchor.grad.isfinite()) for anchor in anchors))
        tables.optimizer.zero_grad() if seen[-1] else tables.optimizer.step()
    return seen


def test_all_ranks_see_a_gradient_that_is_not_finite() -> None:
    assert run_ranks(overflow, 2) == [[False, True, False]] * 2


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="needs a collection with prioritized=True"):
        make_tables().read_ahead([])
    with pytest.raises(ValueError, match="need a lookahead of at least 1"):
        make_tables(prioritized=True, lookahead=0)


def differing(rank: int) -> str:
    try:
        make_tables(prioritized=rank == 0)
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_that_disagree_are_told() -> None:
    for error in run_ranks(differing, 2):
        assert "prioritized is True on rank 0, False on rank 1" in error


def test_one_rank_reads_nothing_ahead() -> None:
    losses, records, traffic = train(0, "adam", ahead=True, steps=20)
    plain = train(0, "adam", ahead=False, steps=20)
    assert losses == plain[0] and same_records(records, plain[1]) and traffic["keys_ahead"] == 0
