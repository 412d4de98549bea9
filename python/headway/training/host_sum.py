# SPDX-License-Identifier: Apache-2.0
"""``HostSum``: numbers that ranks add up and the host reads, without a wait for later work of the device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class HostSum:
    """A sum over ranks on its way to the host. Only ``wait()`` blocks.

    On CUDA the sum and its copy are enqueued on the current stream. Work that is enqueued later does not delay them.

    Args:
        values: numbers of this rank, (N,), overwritten by the sums if there is a group.
        group: the ranks; None: this one alone.
    """

    def __init__(self, values: Tensor, group: dist.ProcessGroup | None) -> None:
        self._values, self._work, self._is_copied = values, None, None
        if group is not None:
            self._work = dist.all_reduce(values, group=group, async_op=True)
        if values.is_cuda:
            if self._work is not None:
                self._work.wait()  # With NCCL and Headway the stream waits, and not the host.
                self._work = None
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_copied.record()

    def wait(self) -> Tensor:
        """Returns the sums, (N,) in host memory."""
        if self._work is not None:
            self._work.wait()
        if self._is_copied is not None:
            self._is_copied.synchronize()
        return self._values
