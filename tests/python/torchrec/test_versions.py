# SPDX-License-Identifier: Apache-2.0
"""``headway.torchrec`` takes the supported versions of torch, TorchRec and FBGEMM, and names others in its error."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from headway._supported_versions import TORCHREC_BY_TORCH
from headway.torchrec import versions as torchrec_versions
from headway.torchrec.versions import check_versions, installed_versions

SUPPORTED = (
    "headway.torchrec supports TorchRec and FBGEMM "
    "1.6 with torch 2.11, 1.7 with torch 2.12, 1.8 with torch 2.13, 1.9 with torch 2.14"
)


def versions(torch: str, torchrec: str | None, fbgemm: str | None) -> dict[str, str | None]:
    return {"torch": torch, "TorchRec": torchrec, "FBGEMM": fbgemm}


@pytest.mark.parametrize(("torch", "torchrec"), sorted(TORCHREC_BY_TORCH.items()))
def test_each_torch_goes_with_the_torchrec_that_was_made_for_it(
    torch: tuple[int, int], torchrec: tuple[int, int]
) -> None:
    numbers = "{}.{}.1".format(*torchrec)
    check_versions(versions("{}.{}.0+cu130".format(*torch), numbers, f"{numbers}+cpu"))
    for other in set(TORCHREC_BY_TORCH.values()) - {torchrec}:
        for found in ([numbers, "{}.{}.0".format(*other)], ["{}.{}.0".format(*other), numbers]):
            with pytest.raises(ImportError, match="which do not go together"):
                check_versions(versions("{}.{}.0+cu130".format(*torch), *found))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            versions("2.14.0+cu130", "1.6.1", "1.6.0"),
            "torch 2.14.0+cu130, TorchRec 1.6.1, FBGEMM 1.6.0 are installed, which do not go together",
        ),
        (versions("2.11.0", "1.6.1", "2026.1.5"), "torch 2.11.0, TorchRec 1.6.1, FBGEMM 2026.1.5 are installed"),
        (versions("2.15.0", "1.9.2", "1.9.0"), "torch 2.15.0 is installed, and there is no TorchRec for it"),
        (versions("2.15.0", None, None), "torch 2.15.0 is installed, and there is no TorchRec for it"),
        (versions("2.14.0", None, "1.9.0"), "TorchRec not installed, beside torch 2.14.0"),
        (versions("2.14.0", None, None), "TorchRec and FBGEMM not installed, beside torch 2.14.0"),
    ],
)
def test_the_error_is_one_line_with_what_was_found_and_what_is_supported(
    found: dict[str, str | None], message: str
) -> None:
    with pytest.raises(ImportError, match=f"{re.escape(message)}.*; {re.escape(SUPPORTED)}$") as caught:
        check_versions(found)
    assert "\n" not in str(caught.value)


def test_the_installed_versions_are_read_from_modules_or_from_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    from_metadata = installed_versions()
    assert None not in from_metadata.values()
    check_versions(from_metadata)

    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    check_versions(installed_versions())  # Now from the modules.
    monkeypatch.setattr(torchrec_versions, "_PACKAGES", {"TorchRec": ("no_such_module", ("no-such-package",))})
    assert installed_versions()["TorchRec"] is None
