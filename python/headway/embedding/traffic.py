# SPDX-License-Identifier: Apache-2.0
"""Counters of the keys that a rank looks up and the bytes that it sends."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from headway._embedding import Keys

#: ``keys`` of batches; ``keys_routed`` after the first deduplication; ``keys_received`` by this rank as an owner;
#: ``keys_found`` after the second deduplication, which are looked up in tables. Bytes sent: ``id_bytes`` (ids, tables
#: and counts), ``vector_bytes`` (embeddings, by owners), ``gradient_bytes`` (to owners).
TrafficName = Literal[
    "keys", "keys_routed", "keys_received", "keys_found", "id_bytes", "vector_bytes", "gradient_bytes"
]


def number_of(keys: Keys) -> int | torch.Tensor:
    """Returns the number of valid keys: an int, or (1,) int32 on the device if only the device knows it."""
    return len(keys) if keys.num_known is None else keys.num_known


class TrafficCounts:
    """Keys and bytes of this rank since the collection was made. Bytes that a rank sends to itself do not count."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = dict.fromkeys(get_args(TrafficName), 0)
        # Sums of the numbers that only a device knows, (1,) int64. Each stream has its own, as additions on two streams
        # would have no order. Keys: name, device and stream.
        self._on_device: dict[tuple[str, torch.device, int], torch.Tensor] = {}

    def add(self, name: TrafficName, number: int | torch.Tensor) -> None:
        """Adds to a counter. Does not wait for the device, which adds a tensor by one small kernel.

        Args:
            number: an int, or (1,) on a device, written by work of the current stream.
        """
        if isinstance(number, int):
            self._totals[name] += number
            return
        stream = torch.cuda.current_stream(number.device).cuda_stream if number.is_cuda else 0
        total = self._on_device.get((name, number.device, stream))
        if total is None:
            # A tensor that is made in inference mode could not be added to outside of it.
            with torch.inference_mode(False):
                total = torch.zeros(1, dtype=torch.int64, device=number.device)
            self._on_device[name, number.device, stream] = total
        # Numbers are added at once. Kept in a list, they made every 256th step 7 ms longer (one H100).
        total += number

    def totals(self) -> dict[str, int]:
        """Returns all counters. Waits for the device. No other thread may look keys up meanwhile."""
        totals = dict(self._totals)
        for device in {number.device for number in self._on_device.values() if number.is_cuda}:
            torch.cuda.synchronize(device)
        for (name, _, _), number in self._on_device.items():
            totals[name] += int(number)
        return totals
