# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: merged tables (``headway/embedding/merging.py``), blocks and their positions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway._embedding import Table
from headway.embedding.checkpoint.sealed_json import seal, unseal
from headway.embedding.merging import MergedTable

MANIFEST_NAME = "manifest.json"
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, is damaged, or does not fit the tables."""


@dataclass(frozen=True)
class Block:
    """One block of a file: its position, and the keys that it holds."""

    file: str  #: Name inside the folder.
    offset: int  #: In bytes.
    num_bytes: int
    crc32: int  #: CRC-32 of all bytes of the block.
    group: int  #: Index of the merged table in ``Manifest.groups``.
    pending: bool  #: True: keys without a row yet, with their lookup counts. False: keys with their rows.
    num_keys: int
    first_bucket: int  #: First virtual bucket of the block. A key's hash gives its bucket.
    end_bucket: int  #: The bucket after the last one.


@dataclass(frozen=True)
class Manifest:
    """Everything in a checkpoint except the contents of its blocks."""

    step: int  #: Optimizer steps so far.
    routing_version: int  #: Version of the mapping from keys to buckets.
    groups: list[dict[str, Any]]  #: For each merged table: see ``describe()``.
    blocks: list[Block]

    def to_json(self) -> str:
        return seal(asdict(self), format_number=_FORMAT)

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            CheckpointError: it is missing or unreadable, has another format, or is damaged.
        """
        path = folder / MANIFEST_NAME
        try:
            values = unseal(path.read_text(), format_number=_FORMAT)
            return Manifest(**{**values, "blocks": [Block(**block) for block in values["blocks"]]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error


def describe(merged: MergedTable, table: Table) -> dict[str, Any]:
    """Returns the entry of a merged table in ``Manifest.groups``.

    ``dim`` and ``state_size`` are the number of floats of a row's embedding and of its optimizer state.
    """
    return {
        "tables": [each.name for each in merged.tables],
        "dim": table.dim,
        "state_size": table.state_size,
        "optimizer": type(merged.config.optimizer).__name__,
    }
