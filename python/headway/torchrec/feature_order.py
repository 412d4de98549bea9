# SPDX-License-Identifier: Apache-2.0
"""Puts the features of a batch into the fixed order of a sharded collection, matched by name.

TorchRec records the positions of features in the first batch and uses them for all later ones. A later batch with its
keys in another order, such as from another data loader, would be looked up in the wrong tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchrec import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import maybe_td_to_kjt


class FeatureOrder:
    """The order in which a sharded collection takes its features.

    Args:
        names: names of the features; a feature that several tables share may occur several times.
        device: device of the batches.
    """

    def __init__(self, names: Iterable[str], device: torch.device) -> None:
        self._names = list(dict.fromkeys(names))
        self._device = device
        #: Keys of a batch -> positions of our features among them, on the host and on the device.
        self._positions: dict[tuple[str, ...], tuple[list[int], torch.Tensor]] = {}

    def apply(self, features: Any) -> KeyedJaggedTensor:
        """Returns the features in the collection's order, and drops others. Copies nothing if the order is right.

        Args:
            features: a ``KeyedJaggedTensor`` or ``TensorDict`` with its keys in any order.
        Raises:
            ValueError: a feature is missing, or occurs more than once.
        """
        keys = tuple(features.keys())
        if not isinstance(features, KeyedJaggedTensor):
            self._positions_in(keys)
            return maybe_td_to_kjt(features, self._names)
        inverse = features.inverse_indices_or_none()
        if list(keys) != self._names:
            with torch.no_grad():
                features = features.permute(*self._positions_in(keys))
        if inverse is None or (features.inverse_indices_or_none() is inverse and inverse[0] == self._names):
            return features
        return _with_inverse_indices(features, self._ordered(*inverse))

    def _positions_in(self, keys: tuple[str, ...]) -> tuple[list[int], torch.Tensor]:
        if keys not in self._positions:
            self._expect_each_once(keys)
            positions = [keys.index(name) for name in self._names]
            self._positions[keys] = positions, torch.tensor(positions, dtype=torch.int32, device=self._device)
        return self._positions[keys]

    def _expect_each_once(self, keys: tuple[str, ...]) -> None:
        missing = [name for name in self._names if name not in keys]
        if missing:
            raise ValueError(f"the batch lacks the features {', '.join(missing)}; it has: {', '.join(keys)}")
        repeated = [name for name in self._names if keys.count(name) > 1]
        if repeated:
            raise ValueError(f"the batch has the features {', '.join(repeated)} more than once")

    def _ordered(self, names: list[str], indices_FB: torch.Tensor) -> tuple[list[str], torch.Tensor]:
        """Sorts the rows of inverse indices (F features, B samples) into our order: TorchRec records positions, too."""
        missing = [name for name in self._names if name not in names]
        if missing:
            raise ValueError(f"the inverse indices of the batch lack the features {', '.join(missing)}")
        return self._names, indices_FB[[names.index(name) for name in self._names]]


def _with_inverse_indices(features: KeyedJaggedTensor, inverse: tuple[list[str], torch.Tensor]) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values(),
        weights=features.weights_or_none(),
        lengths=features.lengths(),
        stride_per_key_per_rank=features.stride_per_key_per_rank(),
        inverse_indices=inverse,
    )
