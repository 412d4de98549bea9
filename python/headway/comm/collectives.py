# SPDX-License-Identifier: Apache-2.0
"""Collectives with options that ``torch.distributed`` does not offer."""

from __future__ import annotations

import torch
import torch.distributed as dist

from headway.comm.groups import backend_of


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

    Exchanges on one channel match in the order in which each rank starts them. Channels are independent of each other:
    threads or pipeline stages that use different channels need not agree on an order. Each channel has its own
    ``max_lag``, the number of exchanges by which this rank may run ahead of its peers (``headway.set_max_lag``,
    ``headway.LagQueue``).

    Args:
        output: receive buffer, blocks in rank order. Shape (sum of output_split_sizes, ...).
        input: rows to send, split along the first dimension. Shape (sum of input_split_sizes, ...).
        output_split_sizes: (size,) rows from each rank; None: equal blocks.
        input_split_sizes: (size,) rows to each rank; None: equal blocks.
        group: a headway group; None: the default group.
        async_op: return at once with a ``Work``.
        channel: 0 to ``Options.num_channels`` - 1.
    Returns:
        the ``Work`` if ``async_op``, else None.
    Raises:
        ValueError: the group is not a headway group, or it has no such channel.
    """
    work = backend_of(group).all_to_all_single(
        output, input, output_split_sizes or [], input_split_sizes or [], channel
    )
    if async_op:
        return work
    work.wait()
    return None
