"""Collectives that go beyond ``torch.distributed``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from headway.groups import backend_of


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    channel: int = 0,
) -> dist.Work | None:
    """``torch.distributed.all_to_all_single`` on one of the group's channels.

    Exchanges of one channel are matched in the order of their start; channels are independent of each other, so that
    threads, or the stages of a pipeline, need not agree on an order. Each has a bound of its own
    (``headway.set_max_lag``, ``headway.LagQueue``).

    Args:
        output: receives rows of all ranks, in their order. Shape (sum of output_split_sizes, ...).
        input: rows to send, cut along the first dimension. Shape (sum of input_split_sizes, ...).
        output_split_sizes: (size,) rows from each rank; equal parts where None.
        input_split_sizes: (size,) rows to each rank; equal parts where None.
        group: a headway group; the default group where None.
        async_op: return at once, with a work to wait for.
        channel: 0 to ``Options.num_channels`` - 1.
    Returns:
        the work where ``async_op``, else None.
    Raises:
        ValueError: not a headway group, or the channel is not one of its channels.
    """
    work = backend_of(group).all_to_all_single(
        output, input, output_split_sizes or [], input_split_sizes or [], channel
    )
    if async_op:
        return work
    work.wait()
    return None
