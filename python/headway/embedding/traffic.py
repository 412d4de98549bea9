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

_MOST_NUMBERS = 256  #: Device counters that are kept before they are summed into one.


def number_of(keys: Keys) -> int | torch.Tensor:
    """Returns the number of valid keys: an int, or (1,) int32 on the device if only the device knows it."""
    return len(keys) if keys.num_known is None else keys.num_known


class TrafficCounts:
    """Keys and bytes of this rank since the collection was made. Bytes that a rank sends to itself do not count."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = dict.fromkeys(get_args(TrafficName), 0)
        self._on_device: dict[str, list[torch.Tensor]] = {}  #: Numbers that only the device knows, not in the totals.

    def add(self, name: TrafficName, number: int | torch.Tensor) -> None:
        """Adds to a counter. Does not wait for the device."""
        if isinstance(number, int):
            self._totals[name] += number
            return
        numbers = self._on_device.setdefault(name, [])
        numbers.append(number)
        if len(numbers) == _MOST_NUMBERS:
            numbers[:] = [torch.cat(numbers).sum(dtype=torch.int64).view(1)]

    def totals(self) -> dict[str, int]:
        """Returns all counters. Waits for the device."""
        return {
            name: total + sum(int(number) for number in self._on_device.get(name, ()))
            for name, total in self._totals.items()
        }
