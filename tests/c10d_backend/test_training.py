# SPDX-License-Identifier: Apache-2.0
"""DDP, FSDP2 and distributed checkpoints give the same losses as under Gloo."""

from __future__ import annotations

import pathlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from rank_processes import run_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Returns the losses of this rank. Its data depend on rank and step."""
    losses = []
    for step in steps:
        torch.manual_seed(1000 * dist.get_rank() + step)
        features_BF = torch.randn(8, 16)
        loss = (model(features_BF).squeeze(1) - features_BF.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_ddp(rank: int) -> list[float]:
    model = DistributedDataParallel(make_model())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), range(STEPS))


def shard_model() -> nn.Module:
    model = make_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_fsdp(rank: int) -> list[float]:
    model = shard_model()
    return train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(STEPS))


def train_with_checkpoint(rank: int, folder: str) -> list[float]:
    """Saves halfway, and continues with a new model that is loaded from the checkpoint."""
    losses: list[float] = []
    for part in (range(STEPS // 2), range(STEPS // 2, STEPS)):
        model = shard_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if part.start:
            state, optimizer_state = get_state_dict(model, optimizer)
            checkpoint.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
        losses += train(model, optimizer, part)
        if not part.start:
            state, optimizer_state = get_state_dict(model, optimizer)
            checkpoint.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder)
    return losses


@pytest.mark.parametrize("function", [train_ddp, train_fsdp])
def test_training_gives_the_losses_of_gloo(function: object) -> None:
    ours = run_ranks(function, 2, backend="headway", timeout_s=60)  # type: ignore[arg-type]
    assert ours == run_ranks(function, 2, backend="gloo", timeout_s=60)  # type: ignore[arg-type]
    assert len(set(ours[0])) == STEPS, "the losses move"


def test_training_through_a_checkpoint_gives_the_losses_of_gloo(tmp_path: pathlib.Path) -> None:
    ours = run_ranks(train_with_checkpoint, 2, str(tmp_path / "ours"), backend="headway", timeout_s=60)
    theirs = run_ranks(train_with_checkpoint, 2, str(tmp_path / "theirs"), backend="gloo", timeout_s=60)
    assert ours == theirs == run_ranks(train_fsdp, 2, backend="headway", timeout_s=60)
