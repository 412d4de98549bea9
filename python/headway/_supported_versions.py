# SPDX-License-Identifier: Apache-2.0
"""The versions of torch, TorchRec and FBGEMM that Headway supports. Imports none of them."""

from __future__ import annotations

import re

#: Oldest and newest supported torch, major and minor version.
OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)

#: Version of torch -> version of the TorchRec and FBGEMM that were made for it. A torch without them is not a key.
TORCHREC_BY_TORCH = {(2, 11): (1, 6), (2, 12): (1, 7), (2, 13): (1, 8), (2, 14): (1, 9)}

#: The supported versions of torch, for messages.
SUPPORTED_TORCH = "{}.{} to {}.{}".format(*OLDEST_TORCH, *NEWEST_TORCH)
#: The same for pip.
TORCH_REQUIREMENT = f"torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]},<{NEWEST_TORCH[0]}.{NEWEST_TORCH[1] + 1}"


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as ``2.14.0+cu130``; (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def check_torch(version: str) -> None:
    """Checks a version of torch.

    Raises:
        ImportError: it is outside the supported range.
    """
    if not OLDEST_TORCH <= release_of(version) <= NEWEST_TORCH:
        raise ImportError(f"torch {version} is installed, and headway supports torch {SUPPORTED_TORCH}")
