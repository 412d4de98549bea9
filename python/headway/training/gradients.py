# SPDX-License-Identifier: Apache-2.0
"""Gradients that do not depend on how samples are distributed over ranks and micro-batches.

Idea: a model returns for each of its heads a sum of losses. The number of terms of a step, over all ranks and
micro-batches, is known before the first backward pass: a small exchange adds the counts. Each backward pass divides its
sums by that number. Then gradients are added everywhere: over micro-batches by autograd, over ranks by a hook of DDP
that sums, and in tables by ``gradient_reduction="sum"``. No mean of means occurs.

Example: rank 0 has 3 targets with losses of sum 6, rank 1 has one with loss 2. The loss is (6 + 2) / 4 = 2. A mean of
the means of both ranks would be (2 + 2) / 2 by chance here, and 4 if the second loss were 6, instead of 3.

Invariants: a head without terms in a step contributes 0. All ranks divide by the same numbers, so sums that are exact
have the same bits for any distribution.
Complexity: one exchange of a few integers per step.
Source: MTGRBoost, section 5.1 (weighted average), with the number of loss terms as weight.
"""

# Without `from __future__ import annotations`: DDP reads the annotation of the hook's bucket.
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from headway.data.sample_batch import SampleBatch


@runtime_checkable
class TrainableModel(Protocol):
    """Interface of models that ``Trainer`` trains. They are modules of torch too.

    A model may also have ``start_lookups(batch)``, which begins the lookups of a batch while the step before computes.
    Its result is passed to the call as ``lookups``. With tables on parameter servers the batch is in host memory. With
    ``read_ahead(lookups)``, which takes the results for all micro-batches of the next step, updates may be prioritized:
    see ``HashTableCollection.read_ahead()``.
    """

    def __call__(self, batch: SampleBatch, *, seed: int, step: int) -> Mapping[str, Tensor]:
        """Returns the sum of the losses of each head, (). The batch may have no samples.

        ``seed`` (``run.seed`` of the configuration) and ``step`` determine random choices such as dropout.
        """
        ...

    def count_terms(self, batch: SampleBatch) -> Mapping[str, int]:
        """Returns the number of terms in the sum of each head."""
        ...

    def predict(self, batch: SampleBatch) -> Mapping[str, Tensor]:
        """Returns the log-probability of each label, (targets,)."""
        ...


def loss_of(sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> Tensor:
    """Returns the part of a batch in the loss of its step: the sum over heads of sum / count.

    Args:
        sums: sum of the losses of each head in the batch.
        counts: number of terms of each head in the whole step, over all ranks and micro-batches.
    """
    parts = [of_head / max(counts[name], 1) for name, of_head in sums.items()]
    return torch.stack(parts).sum()


def sum_gradients(
    group: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Communication hook of DDP that adds gradients instead of averaging them.

    Use it as ``ddp.register_comm_hook(group, sum_gradients)``.
    """
    future: Any = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    result: torch.futures.Future[Tensor] = future.then(lambda done: done.value()[0])
    return result
