"""Tensors that one stream of a CUDA device made and another one reads."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


class KeptTensors:
    """What a stream may still read although nobody else has it.

    Memory that is given up belongs to the stream that it came from, which may use it again at once.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[torch.cuda.Event, Any]] = deque()

    def keep(self, tensors: Any) -> None:
        """Keeps them, or what has them, until the current stream has done what it was given so far; does not wait."""
        while self._kept and self._kept[0][0].query():  # type: ignore[no-untyped-call]
            self._kept.popleft()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._kept.append((event, tensors))
