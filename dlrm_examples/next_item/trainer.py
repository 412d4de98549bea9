# SPDX-License-Identifier: Apache-2.0
"""Trains one model with one seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import torch
from headway.evaluation.full_ranking import Quality
from headway.parallel.context_parallel import ContextParallel
from headway.training import TrainStep

from dlrm_examples.next_item.batches import Batch, training_batches
from dlrm_examples.next_item.context_batches import own_part
from dlrm_examples.next_item.evaluation import evaluate, model_scores
from dlrm_examples.next_item.histories import Histories
from dlrm_examples.next_item.model import HEAD, Attention, NextItemModel
from dlrm_examples.next_item.settings import ModelName, ModelSettings, TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """Result of a training.

    Attributes:
        validation, test: quality after the last epoch.
        epoch_losses: mean loss over the steps of each epoch.
        num_parameters: parameters of the encoder, without embeddings.
        train_s: duration in seconds.
    """

    validation: Quality
    test: Quality
    epoch_losses: tuple[float, ...]
    num_parameters: int
    train_s: float


def train(
    name: ModelName,
    histories: Histories,
    model_settings: ModelSettings,
    settings: TrainingSettings,
    *,
    attention: Attention,
    device: torch.device,
    seed: int,
    say: Callable[[str], None],
) -> TrainedRun:
    """Trains and evaluates a model.

    Args:
        name: encoder of the model.
        histories: films that each user rated, in order of time.
        model_settings: sizes of the model.
        settings: epochs, batch size and learning rate.
        attention: implementation of attention in the HSTU encoder.
        device: device of the model.
        seed: seed of weights, batches and negatives.
        say: called with one line per epoch.
    """
    torch.manual_seed(seed)
    model = NextItemModel(name, model_settings, num_items=histories.num_items, attention=attention).to(device)
    start = time.perf_counter()
    losses = []
    for epoch, of_steps in enumerate(steps(model, histories, model_settings, settings, device=device, seed=seed)):
        losses.append(sum(of_steps) / len(of_steps))
        say(f"{name}, seed {seed}, epoch {epoch + 1} of {settings.epochs}: loss {losses[-1]:.4f}")
    train_s = time.perf_counter() - start
    score = model_scores(model)
    where = {"max_length": model_settings.max_length, "device": device}
    return TrainedRun(
        validation=evaluate(score, histories, "validation", **where),
        test=evaluate(score, histories, "test", **where),
        epoch_losses=tuple(losses),
        num_parameters=sum(parameter.numel() for parameter in model.encoder.parameters()),
        train_s=train_s,
    )


def steps(
    model: NextItemModel,
    histories: Histories,
    model_settings: ModelSettings,
    settings: TrainingSettings,
    *,
    device: torch.device,
    seed: int,
    context: ContextParallel | None = None,
) -> Iterator[list[float]]:
    """Trains a model; yields the losses of the steps of each epoch. Batches and negatives depend only on the seed.

    ``context``: ranks that share each batch, on CPUs. All of them have the same model and call this.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    train_step = TrainStep(model, optimizer=optimizer, group=None if context is None else context.group)
    numbers = count()
    for _ in range(settings.epochs):
        model.train()
        yield [
            _mean_loss(
                train_step,
                batch if context is None else own_part(batch, context, seed=seed, step=next(numbers)),
                len(batch.next_items),
                _draw_negatives(model, settings, generator),
            )
            for batch in training_batches(
                histories,
                max_length=model_settings.max_length,
                batch_size=settings.batch_size,
                device=device,
                generator=generator,
            )
        ]
        schedule.step()


def _mean_loss(train_step: TrainStep, batch: Batch, num_tokens: int, negatives: torch.Tensor | None) -> float:
    """Trains on a batch; returns the mean loss of its tokens, of which there are ``num_tokens`` on all ranks."""
    return train_step([batch], {HEAD: num_tokens}, options=[{"negatives": negatives}])[HEAD] / num_tokens


def _draw_negatives(
    model: NextItemModel, settings: TrainingSettings, generator: torch.Generator
) -> torch.Tensor | None:
    if not settings.num_negatives:
        return None
    drawn = torch.randint(model.items.num_embeddings, (settings.num_negatives,), generator=generator)
    return drawn.to(model.items.weight.device)
