# SPDX-License-Identifier: Apache-2.0
"""Registry of the supported log formats."""

from __future__ import annotations

from pathlib import Path

from dlrm_examples.support.data.ali_ccp import ALI_CCP, is_ali_ccp_directory
from dlrm_examples.support.data.criteo import CRITEO
from dlrm_examples.support.data.log_format import DataError, LogFormat

FORMATS = {log_format.name: log_format for log_format in (CRITEO, ALI_CCP)}


def format_named(name: str) -> LogFormat:
    """Looks up a format by name.

    Raises:
        DataError: there is no format of that name.
    """
    if name not in FORMATS:
        raise DataError(f"unknown log format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def detect_format(source: Path) -> LogFormat:
    """Detects the format: Ali-CCP for a directory with skeleton files, else Criteo."""
    return ALI_CCP if is_ali_ccp_directory(source) else CRITEO
