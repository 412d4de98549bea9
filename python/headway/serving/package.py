# SPDX-License-Identifier: Apache-2.0
"""The folder of a model for serving, and its manifest.

Idea: a model is cut at its lookups. ``tables/`` has the rows, as ``HashTableCollection.save()`` writes them. The dense
part is what comes behind the lookups; it is compiled once for each bucket, a size to which batches are padded.
``manifest.json`` tells how requests become inputs of the dense part. ``export()`` makes the folder under another name
and renames it, so a package is there as a whole or not at all.

Example: two features of 8 columns, "user" and "item", and a bucket of 4 items. The dense part takes two tensors (4, 8).
A request for 3 items fills three rows of each; the fourth is 0.

Invariants: a manifest names the size and checksum of each compiled file. Rows depend on the size of a batch in the last
bit, and never on its other rows, so predictions of one bucket have the same bits whatever else is in the batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from headway.embedding import Constant, Normal, Uniform
from headway.embedding.checkpoint.sealed_json import seal, unseal
from headway.embedding.config import Initializer, Pooling

Axis = Literal["user", "item"]
MANIFEST_NAME = "manifest.json"
TABLES_NAME = "tables"
_FORMAT = 1
_INITIALIZERS: dict[str, type[Initializer]] = {"constant": Constant, "uniform": Uniform, "normal": Normal}


class PackageError(RuntimeError):
    """A package cannot be written or read, is damaged, or does not fit this process."""


@dataclass(frozen=True, kw_only=True)
class ServedFeature:
    """A feature of requests that is looked up.

    Attributes:
        name: in requests.
        table: in which it is looked up.
        axis: ``item``: a request has a list of ids for each item; ``user``: for each user.
        pooling: ``sum`` or ``mean`` of the embeddings of a list; None: all of them, a sequence. Sequences belong to
            users.
        sequence: name of the group of features that share one list of lengths; only for sequences.
        is_single: each list has exactly one id.
    """

    name: str
    table: str
    axis: Axis = "item"
    pooling: Pooling = "sum"
    sequence: str | None = None
    is_single: bool = False

    def __post_init__(self) -> None:
        if self.axis not in ("user", "item"):
            raise ValueError(f"feature {self.name}: axis must be user or item, not {self.axis!r}")
        if (self.pooling is None) != (self.sequence is not None):
            raise ValueError(
                f"feature {self.name}: a feature without pooling needs the name of a sequence, others none"
            )
        if self.pooling is None and self.axis == "item":
            raise ValueError(f"feature {self.name}: sequences belong to users")


@dataclass(frozen=True, kw_only=True)
class DenseFeature:
    """``width`` float32 numbers of each user or item."""

    name: str
    width: int
    axis: Axis = "item"

    def __post_init__(self) -> None:
        if self.axis not in ("user", "item"):
            raise ValueError(f"dense feature {self.name}: axis must be user or item, not {self.axis!r}")
        if self.width < 1:
            raise ValueError(f"dense feature {self.name}: width must be from 1, not {self.width}")


@dataclass(frozen=True, order=True)
class Bucket:
    """A size to which batches are padded.

    Attributes:
        items: most items of all users.
        users: most users; 0 for models without features of users.
        tokens: most values of each sequence, over all users; 0 for models without sequences.
    """

    items: int
    users: int = 0
    tokens: int = 0

    def holds(self, items: int, users: int, tokens: int) -> bool:
        return items <= self.items and users <= self.users and tokens <= self.tokens


@dataclass(frozen=True, kw_only=True)
class ServedTable:
    """A table, with what decides the embedding of an id without a row, beside ``Manifest.seed``.

    Attributes:
        time_to_live: steps without a lookup after which a row counts as absent; 0: never.
        unknown: ``initial``: the embedding that the initializer gives; ``zeros``.
        initializer: its kind, ``constant``, ``uniform`` or ``normal``, and its numbers.
    """

    name: str
    dim: int
    time_to_live: int
    unknown: Literal["initial", "zeros"]
    initializer: dict[str, Any]

    @staticmethod
    def describe(initializer: Initializer) -> dict[str, Any]:
        kind = next(name for name, each in _INITIALIZERS.items() if isinstance(initializer, each))
        return {"kind": kind, **asdict(initializer)}

    def make_initializer(self) -> Initializer:
        numbers = dict(self.initializer)
        return _INITIALIZERS[numbers.pop("kind")](**numbers)


@dataclass(frozen=True, kw_only=True)
class CompiledPart:
    """The dense part, compiled for one bucket. ``crc32`` is that of all bytes of the file."""

    bucket: Bucket
    file: str
    num_bytes: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a package but rows and code.

    The compiled parts take one tensor for each of these, in this order: the embeddings of each feature, the lengths of
    each sequence, each dense feature, and the number of items of each user if there are users.

    Attributes:
        version: of the model; replies name it.
        torch_version: of the torch that compiled the dense part. Another one may not load it.
        device: ``cpu`` or ``cuda``: where the dense part runs. Tables are in host memory.
        cpu_features: instruction set that it needs, as ``cpu_features()`` names it.
        seed: of the initial embeddings of ids without a row.
        longest: most values of a sequence of one user plus items of this user; None: as many as a bucket holds.
        outputs: names, in the order of the compiled parts. Each has a row for each item.
    """

    version: str
    torch_version: str
    seed: int
    tables: Sequence[ServedTable]
    features: Sequence[ServedFeature]
    dense_features: Sequence[DenseFeature]
    longest: int | None
    outputs: Sequence[str]
    parts: Sequence[CompiledPart]
    device: Literal["cpu", "cuda"] = "cpu"
    cpu_features: Sequence[str] = ()

    @property
    def has_users(self) -> bool:
        return "user" in [each.axis for each in self.features] + [each.axis for each in self.dense_features]

    @property
    def sequences(self) -> list[str]:
        """Names of the sequences, in the order of their first features."""
        return list(dict.fromkeys(each.sequence for each in self.features if each.sequence is not None))

    def bucket_for(self, items: int, users: int, tokens: int) -> CompiledPart | None:
        """Returns the compiled part with the fewest items and tokens that holds a batch; None if there is none."""
        fitting = [each for each in self.parts if each.bucket.holds(items, users, tokens)]
        return min(fitting, key=lambda each: (each.bucket.items + each.bucket.tokens, each.bucket), default=None)

    def write(self, folder: Path) -> None:
        """Writes the manifest."""
        (folder / MANIFEST_NAME).write_text(seal(asdict(self), format_number=_FORMAT))

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Reads the manifest of a folder.

        Raises:
            PackageError: it is missing or altered, or has another format.
        """
        path = folder / MANIFEST_NAME
        try:
            values = unseal(path.read_text(), format_number=_FORMAT)
            if unknown := values.keys() - {each.name for each in fields(Manifest)}:
                raise ValueError(f"it has the unknown field {min(unknown)}")
            return Manifest(
                **{
                    **values,
                    "tables": [ServedTable(**each) for each in values["tables"]],
                    "features": [ServedFeature(**each) for each in values["features"]],
                    "dense_features": [DenseFeature(**each) for each in values["dense_features"]],
                    "parts": [CompiledPart(**{**each, "bucket": Bucket(**each["bucket"])}) for each in values["parts"]],
                }
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PackageError(f"{path} is not the manifest of a model for serving: {error}") from error

    def expect_files(self, folder: Path) -> None:
        """Checks size and checksum of each compiled file.

        Raises:
            PackageError: a file is missing, truncated or altered.
        """
        for part in self.parts:
            path = folder / part.file
            try:
                content = path.read_bytes()
            except OSError as error:
                raise PackageError(f"{path} cannot be read: {error.strerror}") from error
            if len(content) != part.num_bytes or zlib.crc32(content) != part.crc32:
                raise PackageError(f"{path} was truncated or altered")


def describe_difference(one: Manifest, other: Manifest) -> str:
    """Returns what differs of all that requests and replies depend on; empty if requests for one fit the other."""
    for name in ("features", "dense_features", "outputs", "longest"):
        if getattr(one, name) != getattr(other, name):
            return f"{name} differ"
    if [(each.name, each.dim) for each in one.tables] != [(each.name, each.dim) for each in other.tables]:
        return "tables differ"
    return ""
