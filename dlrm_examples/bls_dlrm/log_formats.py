"""The log formats that can be read, by name."""

from __future__ import annotations

from pathlib import Path

from dlrm_examples.bls_dlrm.ali_ccp import ALI_CCP, is_ali_ccp_directory
from dlrm_examples.bls_dlrm.criteo import CRITEO
from dlrm_examples.bls_dlrm.log_format import DataError, LogFormat

FORMATS = {log_format.name: log_format for log_format in (CRITEO, ALI_CCP)}


def format_named(name: str) -> LogFormat:
    """The format of that name.

    Raises:
        DataError: there is none.
    """
    if name not in FORMATS:
        raise DataError(f"unknown log format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def detect_format(source: Path) -> LogFormat:
    """Ali-CCP for a directory with skeleton files, else Criteo."""
    return ALI_CCP if is_ali_ccp_directory(source) else CRITEO
