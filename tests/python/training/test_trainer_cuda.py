# SPDX-License-Identifier: Apache-2.0
"""The trainer on GPUs: the bits of the CPU where sums are exact, and checkpoints between both."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from cuda_ranks import NEEDS_GPU, num_gpus
from training_cases import ExactModel, Run, make_config, make_folder, same_bits, train

pytestmark = NEEDS_GPU

ON_GPU = {"device": "cuda"}


def test_exact_sums_have_the_bits_of_the_cpu(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (expected,) = train(1, Run(config=make_config(folder), model=ExactModel))
    on_gpu = Run(config=make_config(folder, run=ON_GPU), model=partial(ExactModel, "cuda"))
    micro = Run(config=make_config(folder, run=ON_GPU, data={"micro_batches": 3}), model=partial(ExactModel, "cuda"))
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        for found in train(num_ranks, on_gpu, micro):
            assert same_bits(found, expected), num_ranks


def test_a_model_learns_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log")
    sections = {"model": {"dropout": 0.2}, "optimizer": {"clip_norm": 1.0}}
    (on_cpu,) = train(1, Run(config=make_config(folder, **sections)))
    exact = {"run": ON_GPU | {"dtype": "float32"}}
    for num_ranks in range(1, min(num_gpus(), 2) + 1):
        on_gpu, faster = train(
            num_ranks,
            Run(config=make_config(folder, **sections, **exact)),
            Run(config=make_config(folder, **sections, run=ON_GPU)),
        )
        assert on_gpu["result"].losses == pytest.approx(on_cpu["result"].losses, rel=2e-3)
        assert faster["result"].losses == pytest.approx(on_cpu["result"].losses, rel=0.05), "bfloat16"


def test_a_training_resumes_on_another_device(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "log", targets=2)
    (whole,) = train(1, Run(config=make_config(folder), model=ExactModel))
    on_gpu = partial(ExactModel, "cuda")
    train(1, Run(config=make_config(folder, run=ON_GPU | {"max_steps": 3}), out=tmp_path, model=on_gpu))
    middle = make_config(folder, run={"max_steps": 5})
    train(1, Run(config=middle, out=tmp_path, resume=True, model=ExactModel))
    (resumed,) = train(1, Run(config=make_config(folder, run=ON_GPU), out=tmp_path, resume=True, model=on_gpu))
    assert same_bits(resumed, whole)
