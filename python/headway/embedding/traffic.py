"""What a rank looks up and exchanges."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from headway._embedding import Keys

#: ``keys`` are looked up, ``routed`` after the first stage, ``received``, and ``found`` after the second: looked up in
#: tables. Bytes are sent: of ids with counts, of vectors by owners, of gradients to owners.
TrafficName = Literal[
    "keys", "keys_routed", "keys_received", "keys_found", "id_bytes", "vector_bytes", "gradient_bytes"
]

_MOST_NUMBERS = 256  #: on a device before they are added up


def number_of(keys: Keys) -> int | torch.Tensor:
    """How many keys there are; on the device if only it knows."""
    return len(keys) if keys.num_known is None else keys.num_known


class TrafficCounts:
    """Keys and bytes of this rank since the collection was made; bytes to itself are not counted."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = dict.fromkeys(get_args(TrafficName), 0)
        self._on_device: dict[str, list[torch.Tensor]] = {}  #: what else there is, by batch

    def add(self, name: TrafficName, number: int | torch.Tensor) -> None:
        """Does not wait for the device."""
        if isinstance(number, int):
            self._totals[name] += number
            return
        numbers = self._on_device.setdefault(name, [])
        numbers.append(number)
        if len(numbers) == _MOST_NUMBERS:
            numbers[:] = [torch.cat(numbers).sum(dtype=torch.int64).view(1)]

    def totals(self) -> dict[str, int]:
        """Waits for the device."""
        return {
            name: total + sum(int(number) for number in self._on_device.get(name, ()))
            for name, total in self._totals.items()
        }
