# SPDX-License-Identifier: Apache-2.0
"""``ContextPlan``: the division of one batch among the ranks of a group, with what this rank needs of it.

Shapes: B sequences and T tokens of all ranks, t tokens that this rank owns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

from headway.nn.attention import AttentionExchange
from headway.nn.config import HSTUConfig
from headway.nn.sequences import Sequences
from headway.parallel.context_parallel.agreement import error_of, gather_objects, raise_first
from headway.parallel.context_parallel.group_batch import GroupBatch, Integers
from headway.parallel.context_parallel.layouts import Layout
from headway.parallel.context_parallel.row_move import RowMove, move_rows, move_to_all, move_to_owners

#: Parts of a layer's config that a plan depends on.
_LAYER_FIELDS = ("num_heads", "qk_dim", "v_dim", "causal", "window", "full_attention_tail")


@dataclass(frozen=True, kw_only=True)
class RankGroups:
    """The ranks that share batches.

    Attributes:
        rank: this rank's index in the group.
        data: group that exchanges tokens; None: this rank is alone.
        host: group of the same ranks for CPU tensors, for checks in the thread that computes.
        planning: another such group, for lengths, which a thread that prefetches may exchange meanwhile.
    """

    rank: int = 0
    data: dist.ProcessGroup | None = None
    host: dist.ProcessGroup | None = None
    planning: dist.ProcessGroup | None = None

    @property
    def num_ranks(self) -> int:
        return 1 if self.data is None else self.data.size()


class ContextPlan:
    """Division of a batch among the ranks of a group. ``ContextParallel.plan()`` makes it, on all of them.

    Attributes:
        batch: sequences of all ranks.
        layout: which rank owns which tokens, and all splits.
        layer: config of the layers that the plan is for.
        number: counts the plans of a group, so that ranks find out if they use different ones.
    """

    def __init__(
        self,
        batch: GroupBatch,
        layout: Layout,
        layer: HSTUConfig,
        groups: RankGroups,
        *,
        number: int,
        is_whole_everywhere: bool,
    ) -> None:
        self.batch, self.layout, self.layer, self.number = batch, layout, layer, number
        self._groups, self._is_whole_everywhere = groups, is_whole_everywhere
        self._is_agreed = False

    @property
    def rank(self) -> int:
        return self._groups.rank

    @cached_property
    def own_tokens(self) -> Tensor:
        """(t,) int64, tokens of the group's batch that this rank owns, ascending, on the host."""
        return torch.from_numpy(self._owned[self.rank])

    @property
    def brought_tokens(self) -> range:
        """Tokens of the group's batch that this rank brings to ``shard()``."""
        return range(self.batch.num_tokens) if self._is_whole_everywhere else self.batch.brought[self.rank]

    @property
    def own_samples(self) -> Tensor:
        """(t,) int64, sequence of each own token, on the host."""
        return torch.from_numpy(self.batch.sequence_of_tokens)[self.own_tokens]

    @property
    def own_places(self) -> Tensor:
        """(t,) int64, index of each own token within its whole sequence, on the host."""
        return torch.from_numpy(self.batch.places)[self.own_tokens]

    @property
    def own_targets(self) -> Tensor:
        """(own targets,) int64, index among the own tokens of each that is a target, on the host."""
        batch = self.batch
        first_target = torch.from_numpy(batch.lengths - batch.targets)
        return (self.own_places >= first_target[self.own_samples]).nonzero()[:, 0]

    def pairs_of(self, rank: int) -> int:
        """Pairs of a query and a key that a rank computes in one layer, over heads."""
        return self.layout.pairs_of(rank)

    def bytes_sent(self, rank: int, *, element_bytes: int) -> tuple[int, int]:
        """Bytes that a rank sends to others in one layer, forward and backward without anything recomputed."""
        return self.layout.bytes_sent(rank, element_bytes)

    def kept_bytes(self, rank: int, *, element_bytes: int) -> int:
        """Bytes of activations that a rank keeps in one layer for the backward pass, without its weights.

        Elements per token are those in the docstring of ``HSTULayer``. With ``recompute="none"`` the queries, keys and
        values that the rank attends with come on top, and dropout keeps a byte of each column of the gated output.
        """
        config = self.layer
        e, p, v, g = config.dim, sum(config.projection_widths), config.gate_width, config.output_width
        statistics = 4 * max(4, element_bytes)  # Four numbers of at least 32 bits.
        of_token = {
            "none": (2 * e + p + v + g) * element_bytes + statistics,
            "norm_and_gate": (e + p + v) * element_bytes,
            "projection": (e + v) * element_bytes,
            "all": e * element_bytes,
        }[config.recompute]
        kept = len(self._owned[rank]) * (of_token + (g if config.dropout > 0 else 0))
        is_view = config.activated == "gate" and self._groups.num_ranks == 1  # Part of the projection.
        if config.recompute == "none" and not is_view:
            kept += sum(self.layout.attended_elements(rank)) * element_bytes
        return kept

    def expect_fits(self, limit_bytes: int, *, num_layers: int, element_bytes: int) -> None:
        """Checks that the activations of a stack fit, before anything is allocated. All ranks find the same.

        It counts what ``num_layers`` layers keep, and queries, keys and values of one layer with gradients of sums.

        Raises:
            ValueError: a rank needs more than ``limit_bytes``; the message has both.
        """
        for rank in range(self._groups.num_ranks):
            kept = num_layers * self.kept_bytes(rank, element_bytes=element_bytes)
            queries, keys = self.layout.attended_elements(rank)
            needed = kept + 2 * queries * element_bytes + keys * (element_bytes + max(4, element_bytes))
            if needed > limit_bytes:
                raise ValueError(
                    f"rank {rank} needs {needed:,} bytes for {len(self._owned[rank]):,} of {self.batch.num_tokens:,} "
                    f"tokens in {num_layers} layers, {kept:,} of them for activations that are kept, and "
                    f"{limit_bytes:,} are allowed: take more ranks or a smaller batch"
                )

    def sequences(
        self,
        times: Tensor | None = None,
        query_times: Tensor | None = None,
        *,
        dropout_keys: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Sequences:
        """Returns the sequences of the whole batch, for layers that are called with this plan.

        All ranks call it, once a batch: it gathers the times of all tokens, if there are any.

        Args:
            times, query_times: (t,) int64 of the own tokens, from ``shard()``. Make query times before the cut:
                the successor of a token may be on another rank.
            dropout_keys: (t,) int64 of the own tokens, from ``shard()``.
            device: device of the result; None: that of ``times`` or ``dropout_keys``, else the host.

        Raises:
            ValueError: times are not those of the own tokens.
        """
        runs = self.layout.query_runs(self.rank)
        everywhere = [each for each in (times, query_times) if each is not None]
        known = [each for each in (times, query_times, dropout_keys) if each is not None]
        target = torch.device(device) if device is not None else known[0].device if known else torch.device("cpu")
        gathered = iter(move_rows(everywhere, self._gather_move, self._groups.data))
        of_keys = None if times is None else next(gathered)
        of_queries = None if query_times is None else next(gathered)
        if of_queries is not None and runs is not None:
            of_queries = of_queries[runs.tokens.to(of_queries.device)]
        batch, offsets = self.batch, torch.from_numpy(self.batch.offsets).to(target)

        def counts(values: object) -> Tensor | None:
            return None if values is None else torch.as_tensor(values, dtype=torch.int32).to(target)

        return Sequences(
            offsets=offsets if runs is None else runs.offsets.to(target),
            max_length=batch.max_length,
            num_contextual=counts(batch.num_contextual),
            num_targets=counts(batch.num_targets),
            times=of_keys,
            query_times=of_queries,
            dropout_keys=dropout_keys,
            key_offsets=None if runs is None else offsets,
            query_runs=None if runs is None else runs.runs.to(target),
        )

    def exchange_of(self, config: HSTUConfig, x: Tensor, sequences: Sequences) -> AttentionExchange:
        """Returns the exchanges of a layer, which calls this. The first call compares the ranks' plans.

        Raises:
            ValueError: the config, ``x`` or ``sequences`` are not of this plan, or ranks use different plans.
            NotImplementedError: the layout has no kernels for the device of ``x``.
        """
        for name in _LAYER_FIELDS:
            planned, found = getattr(self.layer, name), getattr(config, name)
            if planned != found:
                raise ValueError(f"the plan is for layers with {name}={planned}, and this one has {name}={found}")
        if x.is_cuda and sequences.query_runs is not None:
            raise NotImplementedError(f"layout {self.layout.name} is there on the CPU only, and x is on {x.device}")
        self._expect_agreement(lambda: self._check_model(x, sequences))
        return self.layout.exchange(self.rank, self._groups.data)

    def shard(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """See ``ContextParallel.shard()``."""
        self._compare_ranks(lambda: _check_rows(tensors, len(self.brought_tokens), "brings"))
        if self._is_whole_everywhere:
            return [each[self.own_tokens.to(each.device)] for each in tensors]
        return move_rows(tensors, self._shard_move, self._groups.data)

    def unshard(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """See ``ContextParallel.unshard()``."""
        self._compare_ranks(lambda: _check_rows(tensors, len(self.own_tokens), "owns"))
        move = self._gather_move if self._is_whole_everywhere else self._shard_move.reversed()
        return move_rows(tensors, move, self._groups.data)

    @cached_property
    def _owned(self) -> list[Integers]:
        return [self.layout.tokens_of(rank) for rank in range(self._groups.num_ranks)]

    @cached_property
    def _shard_move(self) -> RowMove:
        return move_to_owners(self.batch.brought, self._owned, self.rank)

    @cached_property
    def _gather_move(self) -> RowMove:
        return move_to_all(self._owned, self.rank)

    def _check_model(self, x: Tensor, sequences: Sequences) -> None:
        _check_rows([x], len(self.own_tokens), "owns")
        batch = self.batch
        planned, found = (batch.num_sequences, batch.max_length), (len(sequences.offsets) - 1, sequences.max_length)
        if planned != found:
            raise ValueError(
                f"the plan is of a batch of {planned[0]} sequences of up to {planned[1]} tokens, and the layer got "
                f"{found[0]} sequences of up to {found[1]}: take plan.sequences()"
            )

    def _expect_agreement(self, check: Callable[[], None]) -> None:
        """Compares ranks at the first layer of a plan. Later ones check this rank alone."""
        if self._is_agreed:
            check()
            return
        self._compare_ranks(check)
        self._is_agreed = True

    def _compare_ranks(self, check: Callable[[], None]) -> None:
        of_ranks = gather_objects((self.number, error_of(check)), self._groups.host)
        for rank, (number, _) in enumerate(of_ranks):
            if number != of_ranks[0][0]:
                raise ValueError(f"rank 0 uses the plan of batch {of_ranks[0][0]}, and rank {rank} that of {number}")
        raise_first([error for _, error in of_ranks])


def _check_rows(tensors: Sequence[Tensor], expected: int, verb: str) -> None:
    for index, each in enumerate(tensors):
        if each.shape[:1] != (expected,):
            raise ValueError(
                f"tensor {index} has shape {tuple(each.shape)}, and this rank {verb} {expected} planned tokens"
            )
