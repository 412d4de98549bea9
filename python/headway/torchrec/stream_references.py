# SPDX-License-Identifier: Apache-2.0
"""Keeps tensors alive that one CUDA stream made and another one reads."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch


class StreamReferences:
    """References to tensors that a stream may still read.

    PyTorch's caching allocator returns freed memory to the stream that allocated it, which may reuse it at once. A
    tensor that another stream still reads must therefore stay referenced.
    """

    def __init__(self) -> None:
        self._references: deque[tuple[torch.cuda.Event, Any]] = deque()

    def keep(self, tensors: Any) -> None:
        """Keeps a tensor or container until the current stream has finished its present work. Does not wait."""
        while self._references and self._references[0][0].query():  # type: ignore[no-untyped-call]
            self._references.popleft()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._references.append((event, tensors))
