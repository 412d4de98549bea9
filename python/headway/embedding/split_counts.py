# SPDX-License-Identifier: Apache-2.0
"""Exchange of key counts, from which the sizes of all later exchanges of a batch follow.

G merged tables, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class SplitCounts:
    """Sends this rank's key counts to all ranks, receives theirs, and copies both to the host.

    On CUDA the copy runs on a stream of its own, so ``wait()`` does not wait for kernels that are enqueued later.

    Args:
        sent_GR: for each merged table (R,) int64, the number of keys for each owner.
        group: the ranks that take part.
        stream: stream of the copy; None: the counts are on the CPU.
    """

    def __init__(
        self, sent_GR: Sequence[torch.Tensor], group: dist.ProcessGroup | None, stream: torch.cuda.Stream | None
    ) -> None:
        # Sent and received counts share a tensor, so one copy brings both to the host.
        self._counts_2RG = sent_GR[0].new_empty(2, len(sent_GR[0]), len(sent_GR))
        sent_RG, received_RG = self._counts_2RG
        torch.stack(list(sent_GR), 1, out=sent_RG)
        work = dist.all_to_all_single(received_RG, sent_RG, group=group, async_op=True)
        assert work is not None, "this process is not in the group"
        self._work = work
        self._event: torch.cuda.Event | None = None
        if stream is not None:
            self._fetch(stream)

    def _fetch(self, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._work.wait()
            counts_2RG = self._counts_2RG
            counts_2RG.record_stream(stream)
            self._counts_2RG = torch.empty_like(counts_2RG, device="cpu", pin_memory=True)
            self._counts_2RG.copy_(counts_2RG, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def wait(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Waits for the counts.

        Returns:
            sent_GR and received_GR: (G, R) int64 on the CPU, the number of keys by merged table and rank.
        """
        if self._event is None:
            self._work.wait()
        else:
            self._event.synchronize()
        sent_GR, received_GR = self._counts_2RG.transpose(1, 2).contiguous()
        return sent_GR, received_GR
