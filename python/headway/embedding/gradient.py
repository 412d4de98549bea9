"""Gradients of a lookup's rows between the backward pass and the optimizer's step.

K keys of a rank, W unique keys that a rank owns, B bags, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway._embedding import Deduplicator, Keys, Table, UniqueKeys
from headway.embedding.bag_weights import scaled_weights
from headway.embedding.key_words import tables_of
from headway.embedding.lookup import Part
from headway.embedding.traffic import number_of


@dataclass(frozen=True)
class BagGradients:
    """Gradients of sums of vectors, one for each bag of a batch's keys; without ``offsets`` each key is a bag."""

    values_BD: torch.Tensor
    offsets: torch.Tensor | None = None
    weights: torch.Tensor | None = None


class Gradient:
    """Of the keys of one lookup that this rank owns; added up when rows learn from it, or as somebody asks for it.

    Until then the memory of ``bags`` must stay as it is. So values that share theirs with others, who may write to it,
    are added up at once.

    Args:
        keys: of ``unique``; known only if a rank has a gradient.
        unique: whose keys the bags are of.
        may_wait: whether they may be added up later.
    """

    def __init__(
        self,
        part: Part,
        keys: Keys,
        unique: UniqueKeys,
        bags: BagGradients,
        deduplicator: Deduplicator,
        *,
        may_wait: bool,
    ) -> None:
        self.part, self.keys = part, keys
        self._unique, self._deduplicator = unique, deduplicator
        self._bags: BagGradients | None = bags  #: not added up yet
        self._version = bags.values_BD._version
        self._sums_WD: torch.Tensor | None = None
        self._made: torch.cuda.Event | None = None  #: when values are there, on the stream that makes them
        if not may_wait or not _has_storage_of_its_own(bags.values_BD):
            self.sums_WD()
        elif bags.values_BD.is_cuda:
            self._made = torch.cuda.current_stream(bags.values_BD.device).record_event()

    def sums_WD(self) -> torch.Tensor:
        """Of the keys."""
        if self._sums_WD is None:
            bags = self._bags_for_this_stream()
            self._sums_WD = self._deduplicator.add_up(
                self._unique, bags.values_BD, offsets=bags.offsets, weights=bags.weights
            )
            self._bags = None
        return self._sums_WD

    def scale(self, factor: torch.Tensor | float) -> None:
        """Multiplies the gradients by a number, ()."""
        self._sums_WD = self.sums_WD() * factor

    def apply(self, table: Table, rows_W: torch.Tensor, *, lr: float, step: int, divisor: float) -> None:
        """One step of the optimizer. Sums that nobody has asked for are applied where they are made."""
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
        """
        Raises:
            RuntimeError: values were written to since the backward pass, and not added up before.
        """
        if self._bags is not None and self._bags.values_BD._version != self._version:
            raise RuntimeError(
                "gradients of tables were changed in place between backward() and the optimizer's step()"
            )

    def _bags_for_this_stream(self) -> BagGradients:
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
    """All keys and their gradients, lookup by lookup."""
    keys_N = [gradient.keys for gradient in gradients]
    ids = torch.cat([keys.ids for keys in keys_N])
    tables = torch.cat([tables_of(keys) for keys in keys_N])
    values = torch.cat([gradient.sums_WD() for gradient in gradients])
    if all(keys.num_known is None for keys in keys_N):
        return Keys(ids, tables), values
    # Those that are known come first.
    is_unknown = torch.cat([torch.arange(len(keys), device=ids.device) >= number_of(keys) for keys in keys_N])
    order = is_unknown.to(torch.uint8).argsort(stable=True)
    num_known = is_unknown.logical_not().sum(dtype=torch.int32).view(1)
    return Keys(ids[order], tables[order], num_known=num_known), values[order]
