# SPDX-License-Identifier: Apache-2.0
"""``TableRecords``: a table in a ``state_dict()``, saved and loaded by ``torch.distributed.checkpoint`` (DCP).

Idea: to DCP a table is a 1-D tensor with one element per virtual bucket (16,384), sharded over ranks. DCP plans which
ranges of elements to write and read. An element is all records of a bucket, of any size, so there are no numbers to
compute with. The value can be copied, moved, pickled, saved and loaded.

Example: 2 ranks save: the chunks are [0, 8192) and [8192, 16384), cut into fragments of about 8 MB. 3 ranks load: the
second asks for [5462, 10923). DCP gives it each fragment that overlaps the range, whichever rank wrote it.

Invariants: a fragment is stored as a tensor (1, bytes) uint8 under its range of buckets, and a reader always gets it
whole: only the fragment knows its number of bytes, so ``_Target`` accepts any size and ``_Fragment`` claims to be
larger than any request. ``state_records.py`` drops the keys of other ranks. Records are read from the table while
they are saved, so the table must not change before the save ends; ``clone()`` takes a snapshot.
Complexity: a save encodes one fragment at a time, so it needs about 8 MB beside the table.
Source: the planner protocol of torch.distributed.checkpoint (``__create_write_items__``, ``__create_chunk_list__``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from headway import _embedding
from headway.embedding.table_records import LiveRecords, Records, join_records

#: Approximate size of a fragment in a checkpoint. A writer has one fragment in memory beside the table.
_FRAGMENT_BYTES = 1 << 23

_ALL_BUCKETS = torch.Size([_embedding.NUM_VIRTUAL_BUCKETS])

#: Functions that torch may call on the empty tensor that stands for the records.
_HARMLESS = frozenset(["__get__", "__set__", "data_ptr", "is_floating_point", "is_complex", "_is_view", "element_size"])


class TableRecords(torch.Tensor):
    """All records of a table: ids, embeddings, optimizer states, counts and steps.

    ``read()`` returns the columns. ``clone()``, ``cpu()``, ``to()`` and ``copy.deepcopy()`` take a snapshot. Without
    one the records are read from the table when they are saved. They are on the CPU, whatever device the table is on.
    ``numel()`` is the number of floats in embeddings and optimizer states.
    """

    _source: LiveRecords | Records
    _received: list[Records] | None  #: Pieces that a load has read; they replace the source. None: nothing was loaded.
    _ends: dict[int, int]  #: First bucket of each fragment of a planned save -> the bucket after its last.

    @staticmethod
    def of(source: LiveRecords | Records) -> TableRecords:
        """Makes the value of a table from its records."""
        made: TableRecords = torch.Tensor._make_subclass(TableRecords, torch.empty(0, dtype=torch.uint8))
        made._source, made._received, made._ends = source, None, {}
        return made

    @property
    def buckets(self) -> tuple[int, int]:
        """The first virtual bucket of this rank, and the one after its last."""
        return self._source.buckets

    def fragments(self) -> list[Records]:
        """Returns all records, in any number of fragments. Buckets that a checkpoint lacks are missing."""
        return [self._source.read()] if self._received is None else self._received

    def read(self, table_buckets: tuple[int, int] | None = None) -> Records:
        """Returns the records in a range of buckets (first, end); None: all buckets of this rank."""
        buckets = table_buckets or self.buckets
        if self._received is None:
            return self._source.read(buckets)
        begin, end = buckets
        parts = [
            each.read((max(begin, each.buckets[0]), min(end, each.buckets[1])))
            for each in self._received
            if each.buckets[0] < end and begin < each.buckets[1]
        ]
        return join_records(parts, buckets)

    # The methods that torch expects of a tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in _HARMLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        own = cls.__dict__.get(name)
        if own is not None and isinstance(args[0], cls):
            return own(*args, **(kwargs or {}))
        raise TypeError(
            f"{name}() is not for the records of a table, which are no numbers: read() gives ids_K, embeddings_KD, "
            "states_KS and others as tensors"
        )

    def clone(self, **options: Any) -> TableRecords:
        """Returns a snapshot, which does not change when the table is updated."""
        return TableRecords.of(self.read().clone())

    def to(self, *arguments: Any, **options: Any) -> TableRecords:
        """Returns a snapshot on the CPU; records have no other device.

        Raises:
            TypeError: another dtype is requested.
        """
        if any(isinstance(each, torch.dtype) for each in (*arguments, *options.values())):
            raise TypeError("the records of a table keep their types: ids, counts and embeddings have different ones")
        return self.clone()

    def cpu(self, *arguments: Any, **options: Any) -> TableRecords:
        return self.to()

    def detach(self) -> TableRecords:
        return self

    def contiguous(self, *arguments: Any, **options: Any) -> TableRecords:
        return self

    def new_empty(self, *size: Any, **options: Any) -> TableRecords:
        """Returns a value with the same source. The state staging of torch makes copies by ``new_empty()``."""
        return TableRecords.of(self._source)

    def numel(self) -> int:
        return sum(each.num_values for each in self._received) if self._received else self._source.num_values

    def nelement(self) -> int:
        return self.numel()

    def size(self, dim: int | None = None) -> Any:
        return _ALL_BUCKETS if dim is None else _ALL_BUCKETS[dim]

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return _ALL_BUCKETS

    def dim(self) -> int:
        return 1

    def __len__(self) -> int:
        return _ALL_BUCKETS[0]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TableRecords(buckets={self.buckets})"

    def __deepcopy__(self, memo: Any) -> TableRecords:
        return self.clone()

    def __copy__(self) -> TableRecords:
        made = TableRecords.of(self._source)
        made._received = self._received
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return table_records, self.read().values()

    # Planner protocol of torch.distributed.checkpoint

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        self._ends = dict(self._ranges())
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size([begin])),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(_chunk(begin, end), TensorProperties(dtype=torch.uint8), _ALL_BUCKETS),
            )
            for begin, end in self._ends.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Plans a load of this rank's buckets. DCP calls it first, so fragments of an earlier load are dropped."""
        self._received = []
        return [_chunk(*self.buckets)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> _Fragment:
        assert index.offset is not None, "fragments are known by their first bucket"
        return _Fragment(self, index.offset[0])

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the first bucket of each fragment and the one after its last."""
        begin, end = self.buckets
        num_fragments = min(1 + 4 * self.numel() // _FRAGMENT_BYTES, end - begin)
        bounds = [begin + (end - begin) * each // num_fragments for each in range(num_fragments + 1)]
        return pairwise(bounds)

    def encoded(self, first_bucket: int) -> torch.Tensor:
        """Encodes the fragment that begins at ``first_bucket``."""
        return self.read((first_bucket, self._ends[first_bucket])).encode()

    def receive(self, encoded: torch.Tensor) -> None:
        """Adds a fragment that a load has read."""
        assert self._received is not None, "a load plan comes first"
        self._received.append(Records.decode(encoded))


class _Fragment:
    """A fragment for DCP: a writer calls ``detach()`` for the data, a reader ``narrow()`` for the destination."""

    def __init__(self, records: TableRecords, first_bucket: int) -> None:
        self._records, self._first_bucket = records, first_bucket

    def detach(self) -> torch.Tensor:
        return self._records.encoded(self._first_bucket)

    def size(self, dim: int) -> int:
        return _ALL_BUCKETS[0] + 1  # Larger than any range of buckets, so DCP always calls narrow().

    def narrow(self, dim: int, start: int, length: int) -> _Target:
        return _Target(self._records)


class _Target:
    """Destination of a read: accepts a fragment of any size."""

    def __init__(self, records: TableRecords) -> None:
        self._records = records

    def detach(self) -> _Target:
        return self

    def size(self) -> _AnySize:
        return _AnySize()

    def copy_(self, encoded: torch.Tensor) -> None:
        self._records.receive(encoded)


class _AnySize:
    """A size that equals any other: passes DCP's check that source and destination have the same size."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def table_records(*fields: Any) -> TableRecords:
    """Makes a ``TableRecords`` from the fields of ``Records``; the constructor that pickles refer to."""
    return TableRecords.of(Records(*fields))


def _chunk(begin: int, end: int) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([begin]), torch.Size([end - begin]))


# torch.load(weights_only=True) must accept it.
torch.serialization.add_safe_globals([table_records])
