"""What a checkpoint has, and where."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway._embedding import Table
from headway.embedding.merging import MergedTable

MANIFEST_NAME = "manifest.json"
_FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or is not what was written."""


@dataclass(frozen=True)
class Block:
    """Where columns are, and what they are of."""

    file: str
    offset: int
    num_bytes: int
    crc32: int
    group: int  #: of the tables in the manifest
    pending: bool  #: keys that wait for a row, with their counts, instead of records
    num_keys: int
    first_bucket: int
    end_bucket: int


@dataclass(frozen=True)
class Manifest:
    """All about a checkpoint but its records."""

    step: int
    routing_version: int
    groups: list[dict[str, Any]]  #: by merged table: names, dim, state_size, optimizer
    blocks: list[Block]

    def to_json(self) -> str:
        body = json.dumps(asdict(self))
        return json.dumps({"format": _FORMAT, "crc32": zlib.crc32(body.encode()), "manifest": body})

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Raises: CheckpointError: it is not there, not ours, or altered."""
        path = folder / MANIFEST_NAME
        try:
            envelope = json.loads(path.read_text())
            body = envelope["manifest"]
            if envelope["format"] != _FORMAT or zlib.crc32(body.encode()) != envelope["crc32"]:
                raise ValueError("it has another format, or was altered")
            values = json.loads(body)
            return Manifest(**{**values, "blocks": [Block(**block) for block in values["blocks"]]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not the manifest of a checkpoint: {error}") from error


def describe(group: MergedTable, table: Table) -> dict[str, Any]:
    """What a manifest says of a merged table."""
    return {
        "tables": [each.name for each in group.tables],
        "dim": table.dim,
        "state_size": table.state_size,
        "optimizer": type(group.config.optimizer).__name__,
    }
