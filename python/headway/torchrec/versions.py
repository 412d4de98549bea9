"""Checks the versions of torch, TorchRec and FBGEMM: this package overrides internals that may change between them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

#: Module -> prefix of the versions that were tested.
TRIED = {"torch": "2.11.", "torchrec": "1.6.", "fbgemm_gpu": "1.6."}


def installed_versions() -> dict[str, str]:
    """Returns the installed version of each module.

    Raises:
        ImportError: a module is not installed.
    """
    versions = {}
    for module in TRIED:
        try:
            versions[module] = str(import_module(module).__version__)
        except ImportError as error:
            raise ImportError(f"headway.torchrec needs {module} {TRIED[module]}x, which is not installed") from error
    return versions


def check_versions(versions: Mapping[str, str]) -> None:
    """Checks versions by module.

    Raises:
        ImportError: a version was not tested.
    """
    wrong = [
        f"{module} {version} is installed, but only {TRIED[module]}x was tried"
        for module, version in versions.items()
        if not version.startswith(TRIED[module])
    ]
    if wrong:
        raise ImportError(f"headway.torchrec cannot be used: {'; '.join(wrong)}")
