# SPDX-License-Identifier: Apache-2.0
"""Checks the versions of torch, TorchRec and FBGEMM: this package overrides internals that may change between them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata

import torch

from headway._supported_versions import TORCHREC_BY_TORCH, release_of

#: Project -> its module, and the names under which it is published.
_PACKAGES = {
    "TorchRec": ("torchrec", ("torchrec", "torchrec-nightly")),
    "FBGEMM": ("fbgemm_gpu", ("fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")),
}

_PAIRS = ", ".join("{}.{} with torch {}.{}".format(*TORCHREC_BY_TORCH[key], *key) for key in sorted(TORCHREC_BY_TORCH))
#: The supported combinations, for messages.
SUPPORTED = f"headway.torchrec supports TorchRec and FBGEMM {_PAIRS}"


def installed_versions() -> dict[str, str | None]:
    """Returns the installed version of torch, TorchRec and FBGEMM; None: it is not installed.

    A package whose distribution is installed is not imported: one that was made for another torch may fail to import.
    """
    return {"torch": torch.__version__} | {project: _version_of(*package) for project, package in _PACKAGES.items()}


def _version_of(module: str, distributions: tuple[str, ...]) -> str | None:
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    try:
        return str(import_module(module).__version__)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def check_versions(versions: Mapping[str, str | None]) -> None:
    """Checks that TorchRec and FBGEMM are of the release that was made for the release of torch.

    Args:
        versions: the result of ``installed_versions()``.
    Raises:
        ImportError: they are not, one is not installed, or no TorchRec was made for torch.
    """
    wanted = TORCHREC_BY_TORCH.get(release_of(versions["torch"] or ""))
    if wanted is None:
        raise ImportError(f"torch {versions['torch']} is installed, and there is no TorchRec for it; {SUPPORTED}")
    missing = [project for project, version in versions.items() if version is None]
    if missing:
        raise ImportError(f"{' and '.join(missing)} not installed, beside torch {versions['torch']}; {SUPPORTED}")
    if any(release_of(versions[project] or "") != wanted for project in _PACKAGES):
        found = ", ".join(f"{project} {version}" for project, version in versions.items())
        raise ImportError(f"{found} are installed, which do not go together; {SUPPORTED}")
