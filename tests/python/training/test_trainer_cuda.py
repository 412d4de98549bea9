# SPDX-License-Identifier: Apache-2.0
"""The trainer on GPUs: the same bits for any division where sums are exact, and what the CPU learns up to rounding."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from cuda_ranks import NEEDS_GPU, num_gpus
from headway.training import TrainStep
from training_cases import ExactModel, Run, make_config, make_folder, most_difference, same_bits, train

pytestmark = NEEDS_GPU

ON_GPU = {"device": "cuda", "dtype": "float32"}


def test_exact_sums_have_the_same_bits_for_any_ranks_and_micro_batches(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (on_cpu,) = train(1, Run(config=make_config(folder), model=ExactModel))
    on_gpu = Run(config=make_config(folder, run=ON_GPU), model=partial(ExactModel, "cuda"))
    micro = Run(config=make_config(folder, run=ON_GPU, data={"micro_batches": 3}), model=partial(ExactModel, "cuda"))
    alone, *others = train(1, on_gpu, micro)
    if num_gpus() > 1:
        others += train(2, on_gpu, micro)
    assert all(same_bits(other, alone) for other in others)
    assert most_difference(alone, on_cpu) < 1e-5, "Adam rounds differently"


def test_a_model_learns_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    sections = {"model": {"dropout": 0.2}, "optimizer": {"clip_norm": 1.0}}
    (on_cpu,) = train(1, Run(config=make_config(folder, **sections)))
    exact = Run(config=make_config(folder, **sections, run=ON_GPU))
    faster = Run(config=make_config(folder, **sections, run=ON_GPU | {"dtype": "bfloat16"}))
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        as_exact, as_fast = train(num_ranks, exact, faster)
        assert as_exact["result"].losses == pytest.approx(on_cpu["result"].losses, rel=2e-3)
        assert as_fast["result"].losses == pytest.approx(on_cpu["result"].losses, rel=0.05)


def test_a_training_resumes_on_another_device(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (whole,) = train(1, Run(config=make_config(folder), model=ExactModel))
    on_gpu = partial(ExactModel, "cuda")
    train(1, Run(config=make_config(folder, run=ON_GPU | {"max_steps": 3}), out=tmp_path, model=on_gpu))
    middle = make_config(folder, run={"max_steps": 5})
    train(1, Run(config=middle, out=tmp_path, resume=True, model=ExactModel))
    (resumed,) = train(1, Run(config=make_config(folder, run=ON_GPU), out=tmp_path, resume=True, model=on_gpu))
    assert resumed["step"] == 8 and most_difference(resumed, whole) < 1e-5


def test_steps_in_flight_change_no_bit(tmp_path: Path) -> None:
    """The bits of tables and weights are those of a training without a pipeline, on one and on two GPUs."""
    folder = make_folder(tmp_path / "log", targets=2)
    runs = [
        Run(config=make_config(folder, run=ON_GPU | {"steps_ahead": depth}), model=partial(ExactModel, "cuda"))
        for depth in (0, 1, 3)
    ]
    grm = [Run(config=make_config(folder, run=ON_GPU | {"steps_ahead": depth})) for depth in (0, 2)]
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        alone, *others = train(num_ranks, *runs)
        assert all(same_bits(other, alone) for other in others)
        first, second = train(num_ranks, *grm)
        assert first["result"].losses == pytest.approx(second["result"].losses, rel=1e-4)


class SlowBackward(torch.nn.Module):
    """A loss whose backward pass keeps the device busy for about half a second."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, device="cuda"))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        product = self.weight * batch
        product.register_hook(lambda grad: torch.cuda._sleep(1_000_000_000))
        return {"loss": product.sum()}


def test_the_host_goes_on_while_the_backward_pass_runs() -> None:
    model = SlowBackward()
    step = TrainStep(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    batch = torch.ones(1, device="cuda")
    step([batch], {"loss": 1})
    torch.cuda.synchronize()
    assert step([batch], {"loss": 1}) == {"loss": 0.5}
    done = torch.cuda.Event()
    done.record()
    assert not done.query(), "the update was enqueued before the backward pass had ended"
    torch.cuda.synchronize()
    assert model.weight.item() == 0.0


def test_samples_that_move_change_no_bit(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    on_gpu = partial(ExactModel, "cuda")
    (alone,) = train(1, Run(config=make_config(folder, run=ON_GPU), model=on_gpu))
    moving = {"scope": "global", "square_weight": 0.01, "global_batch": 16}
    runs = [
        Run(
            config=make_config(folder, data=moving | {"balance": mode, "micro_batches": parts}, run=ON_GPU),
            model=on_gpu,
        )
        for mode, parts in (("fixed", 1), ("variable", 2))
    ]
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        assert all(same_bits(other, alone) for other in train(num_ranks, *runs))


def test_a_budget_is_measured_on_gpus(tmp_path: Path) -> None:
    config = make_config(make_folder(tmp_path / "log"), data={"balance": "budget"}, run={"device": "cuda"})
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        (found,) = train(num_ranks, Run(config=config))
        assert found["step"] > 0


def test_budgets_and_float16_train_on_gpus(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    # A sample of L tokens counts as L + 0.01 L^2. With 0 the device measures that weight, so numbers of steps vary.
    by_weight = {"balance": "budget", "budget": 60, "budget_unit": "weight", "square_weight": 0.01}
    (on_cpu,) = train(1, Run(config=make_config(folder, data=by_weight)))
    budget = Run(config=make_config(folder, data=by_weight, run=ON_GPU))
    fitted = Run(config=make_config(folder, data=by_weight | {"square_weight": 0.0}, run=ON_GPU))
    half = Run(config=make_config(folder, data=by_weight, run=ON_GPU | {"dtype": "float16"}))
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        found, of_fit, in_half = train(num_ranks, budget, fitted, half)
        assert of_fit["step"] > 0
        if num_ranks == 1:
            assert found["step"] == in_half["step"] == on_cpu["step"]
            assert found["result"].losses == pytest.approx(on_cpu["result"].losses, rel=2e-3)
            assert in_half["result"].losses == pytest.approx(on_cpu["result"].losses, rel=0.05)
