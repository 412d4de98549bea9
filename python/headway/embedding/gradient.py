# SPDX-License-Identifier: Apache-2.0
"""Gradients of a lookup's rows between the backward pass and the optimizer's step, reduced as late as possible.

Idea: autograd gives one gradient per bag, (B, D), but rows need one per unique key, (W, D). The reduction is postponed.
If only the optimizer reads the gradient, it reads the bags directly (``Table.update_bags()``), and (W, D) is never
stored. If anything else reads it first (a norm, clipping, GradScaler, a second lookup of the table), ``sums_WD()``
reduces it once and keeps the sums.

Example: bags [5, 6] and [5] with gradients g0 and g1. The unique keys 5 and 6 get the sums g0 + g1 and g0.

Invariants: sums are added in the order of the batch, so they have the same bits in every run.
Until the reduction nobody may write to the gradients of bags. This is checked by the tensor's version counter.
Gradients that share their storage with other tensors are reduced at once.
On CUDA the reduction may run on another stream than the backward pass: an event orders the two.
Complexity: O(K D) operations, and O(W D) memory only if ``sums_WD()`` is called.

K keys of a rank, W unique keys that a rank owns, B bags, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway._embedding import Deduplicator, Keys, Table, UniqueKeys, tables_of
from headway.embedding.bag_weights import scaled_weights
from headway.embedding.lookup import TableLookup
from headway.embedding.traffic import number_of


@dataclass(frozen=True)
class BagGradients:
    """Gradients of pooled embeddings, one per bag."""

    values_BD: torch.Tensor
    offsets: torch.Tensor | None = None  #: (B + 1,) int64, bounds of the bags among the keys; None: each key is a bag.
    weights: torch.Tensor | None = None  #: (K,) weights of the keys; None: all 1.


class Gradient:
    """Gradient of the keys of one lookup that this rank owns. It is reduced when it is applied or read.

    The memory of ``bags`` must not change before. Values whose storage other tensors share are reduced at once.

    Args:
        table_lookup: the lookup, which has the rows of the keys.
        keys: the keys of ``unique``. ``num_known`` is 0 if no rank has a gradient and only the device knows it.
        unique: the keys that ``bags`` refers to.
        bags: the gradients.
        deduplicator: reduces them.
        may_wait: may the reduction be postponed? False: reduce now.
    """

    def __init__(
        self,
        table_lookup: TableLookup,
        keys: Keys,
        unique: UniqueKeys,
        bags: BagGradients,
        deduplicator: Deduplicator,
        *,
        may_wait: bool,
    ) -> None:
        self.table_lookup, self.keys = table_lookup, keys
        self._unique, self._deduplicator = unique, deduplicator
        self._bags: BagGradients | None = bags  #: Not reduced yet; None after the reduction.
        self._version = bags.values_BD._version
        self._sums_WD: torch.Tensor | None = None
        self._made: torch.cuda.Event | None = None  #: Recorded on the stream of the backward pass, after the values.
        if not may_wait or not _has_storage_of_its_own(bags.values_BD):
            self.sums_WD()
        elif bags.values_BD.is_cuda:
            self._made = torch.cuda.current_stream(bags.values_BD.device).record_event()

    def sums_WD(self) -> torch.Tensor:
        """Returns the sum of gradients of each key, (W, D). The first call reduces them."""
        if self._sums_WD is None:
            bags = self._bags_for_this_stream()
            self._sums_WD = self._deduplicator.reduce(
                self._unique, bags.values_BD, offsets=bags.offsets, weights=bags.weights
            )
            self._bags = None
        return self._sums_WD

    def scale(self, factor: torch.Tensor | float) -> None:
        """Multiplies the gradients by a number or a tensor of shape ()."""
        self._sums_WD = self.sums_WD() * factor

    def apply(self, table: Table, rows_W: torch.Tensor, *, lr: float, step: int, divisor: float) -> None:
        """Applies one optimizer step. A gradient that is not reduced yet is reduced inside the update.

        Args:
            table: the table that has the keys.
            rows_W: (W,) rows of the keys.
            lr: learning rate.
            step: number of the step, from 1.
            divisor: divides the gradients.
        """
        if self._sums_WD is not None:
            table.update(self.keys, rows_W, divided(self._sums_WD, divisor), lr=lr, step=step)
            return
        bags = self._bags_for_this_stream()
        table.update_bags(
            self.keys,
            rows_W,
            self._unique,
            bags.values_BD,
            offsets=bags.offsets,
            weights=scaled_weights(bags.weights, 1 / divisor, self._unique),
            lr=lr,
            step=step,
        )

    def expect_unchanged(self) -> None:
        """Checks that nobody wrote to gradients that are not reduced yet.

        Raises:
            RuntimeError: the values changed in place since the backward pass.
        """
        if self._bags is not None and self._bags.values_BD._version != self._version:
            raise RuntimeError(
                "gradients of tables were changed in place between backward() and the optimizer's step()"
            )

    def _bags_for_this_stream(self) -> BagGradients:
        """Returns the gradients of bags, ordered for use on the current stream."""
        assert self._bags is not None, "they are added up"
        self.expect_unchanged()
        if self._made is not None:
            stream = torch.cuda.current_stream(self._bags.values_BD.device)
            stream.wait_event(self._made)
            for tensor in (self._bags.values_BD, self._bags.offsets, self._bags.weights):
                if tensor is not None:
                    tensor.record_stream(stream)
        return self._bags


def _has_storage_of_its_own(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def divided(values: torch.Tensor, divisor: float) -> torch.Tensor:
    return values if divisor == 1 else values / divisor


def join_gradients(gradients: Sequence[Gradient]) -> tuple[Keys, torch.Tensor]:
    """Concatenates keys and gradients of several lookups; valid keys come first."""
    keys_N = [gradient.keys for gradient in gradients]
    ids = torch.cat([keys.ids for keys in keys_N])
    tables = torch.cat([tables_of(keys) for keys in keys_N])
    values = torch.cat([gradient.sums_WD() for gradient in gradients])
    if all(keys.num_known is None for keys in keys_N):
        return Keys(ids, tables), values
    # A stable sort moves the valid keys to the front, because `num_known` counts keys from the front.
    is_unknown = torch.cat([torch.arange(len(keys), device=ids.device) >= number_of(keys) for keys in keys_N])
    order = is_unknown.to(torch.uint8).argsort(stable=True)
    num_known = is_unknown.logical_not().sum(dtype=torch.int32).view(1)
    return Keys(ids[order], tables[order], num_known=num_known), values[order]
