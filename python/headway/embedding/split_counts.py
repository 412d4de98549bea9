"""How many keys go to each rank and come from it: what the sizes of exchanges follow from.

G merged tables, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

CountsGR = list[list[int]]


class SplitCounts:
    """Counts on their way to the other ranks, and then to the host.

    On CUDA they have a stream of their own, so that ``wait()`` waits for what was enqueued before them and no longer.
    """

    def __init__(
        self, sent_GR: Sequence[torch.Tensor], group: dist.ProcessGroup | None, stream: torch.cuda.Stream | None
    ) -> None:
        self._sent_RG = torch.stack(list(sent_GR), 1)
        self._received_RG = torch.empty_like(self._sent_RG)
        self._work = dist.all_to_all_single(self._received_RG, self._sent_RG, group=group, async_op=True)
        self._event: torch.cuda.Event | None = None
        if stream is not None:
            self._fetch(stream)

    def _fetch(self, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._work.wait()
            on_host = []
            for counts in (self._sent_RG, self._received_RG):
                counts.record_stream(stream)
                on_host.append(torch.empty_like(counts, device="cpu", pin_memory=True).copy_(counts, non_blocking=True))
            self._sent_RG, self._received_RG = on_host
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)

    def wait(self) -> tuple[CountsGR, CountsGR]:
        """What this rank sends to each, and receives."""
        if self._event is None:
            self._work.wait()
        else:
            self._event.synchronize()
        return self._sent_RG.t().tolist(), self._received_RG.t().tolist()
