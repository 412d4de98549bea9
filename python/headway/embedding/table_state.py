"""The records of a table as a value of a ``state_dict()``: one tensor over all virtual buckets, sharded among ranks.

Its elements are the records of a bucket, of any number of keys, so it has no numbers to compute with. It can be copied,
moved, pickled and, by the protocol of ``torch.distributed.checkpoint``, saved and loaded: each rank writes its range of
buckets, in pieces of a bounded size, and reads the pieces that have buckets of its range, whoever wrote them.

In a checkpoint a piece is a tensor (1, bytes) uint8 under the range of its buckets. The reader gets it whole: only it
knows how many bytes there are, and so the target that it is copied to takes any size.
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

#: Bytes of a piece in a checkpoint, about: a writer has one in memory besides the table.
_PIECE_BYTES = 1 << 23

_ALL_BUCKETS = torch.Size([_embedding.NUM_VIRTUAL_BUCKETS])

#: What torch may ask of the empty tensor that stands for the records.
_HARMLESS = frozenset(["__get__", "__set__", "data_ptr", "is_floating_point", "is_complex", "_is_view", "element_size"])


class TableRecords(torch.Tensor):
    """All that a table has: ids, vectors, the optimizer's state, counts and steps.

    ``read()`` gives the columns. ``clone()``, ``cpu()``, ``to()`` and ``copy.deepcopy()`` take a snapshot; without one
    the records are read from the table as they are saved. They are on the CPU, whatever device the table is on.
    ``numel()`` is the number of floats of vectors and of the optimizer's state.
    """

    _source: LiveRecords | Records
    _received: list[Records] | None  #: pieces of a checkpoint that take the place of the source
    _ends: dict[int, int]  #: of the pieces of a save that is planned, by their first bucket

    @staticmethod
    def of(source: LiveRecords | Records) -> TableRecords:
        made: TableRecords = torch.Tensor._make_subclass(TableRecords, torch.empty(0, dtype=torch.uint8))
        made._source, made._received, made._ends = source, None, {}
        return made

    @property
    def buckets(self) -> tuple[int, int]:
        """The first virtual bucket of this rank, and the one behind its last."""
        return self._source.buckets

    def pieces(self) -> list[Records]:
        """All records, in any number of pieces; of some buckets there are none if a checkpoint lacks them."""
        return [self._source.read()] if self._received is None else self._received

    def read(self, table_buckets: tuple[int, int] | None = None) -> Records:
        """Records of some buckets; None: all of this rank."""
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
            f"{name}() is not for the records of a table, which are no numbers: read() gives ids_K, vectors_KD, "
            "states_KS and others as tensors"
        )

    def clone(self, **options: Any) -> TableRecords:
        """A snapshot, which does not change as the table learns."""
        return TableRecords.of(self.read().clone())

    def to(self, *arguments: Any, **options: Any) -> TableRecords:
        """A snapshot on the CPU, where records are: they have no other device.

        Raises:
            TypeError: another dtype is asked for.
        """
        if any(isinstance(each, torch.dtype) for each in (*arguments, *options.values())):
            raise TypeError("the records of a table keep their types: ids, counts and vectors have different ones")
        return self.clone()

    def cpu(self, *arguments: Any, **options: Any) -> TableRecords:
        return self.to()

    def detach(self) -> TableRecords:
        return self

    def contiguous(self, *arguments: Any, **options: Any) -> TableRecords:
        return self

    def new_empty(self, *size: Any, **options: Any) -> TableRecords:
        """Takes the attributes of another one: torch's staging of state makes copies in this way."""
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

    # The protocol of torch.distributed.checkpoint

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
        """The records that this rank reads. A load begins with it, so what an earlier one gave is dropped."""
        self._received = []
        return [_chunk(*self.buckets)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> _Piece:
        assert index.offset is not None, "pieces are known by their first bucket"
        return _Piece(self, index.offset[0])

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """The first bucket of each piece, and the one behind its last."""
        begin, end = self.buckets
        num_pieces = min(1 + 4 * self.numel() // _PIECE_BYTES, end - begin)
        bounds = [begin + (end - begin) * each // num_pieces for each in range(num_pieces + 1)]
        return pairwise(bounds)

    def encoded(self, first_bucket: int) -> torch.Tensor:
        """The piece that begins there, as a checkpoint has it."""
        return self.read((first_bucket, self._ends[first_bucket])).encode()

    def receive(self, encoded: torch.Tensor) -> None:
        assert self._received is not None, "a load plan comes first"
        self._received.append(Records.decode(encoded))


class _Piece:
    """A piece of a checkpoint: a writer asks for the tensor by ``detach()``, a reader for a target by ``narrow()``."""

    def __init__(self, records: TableRecords, first_bucket: int) -> None:
        self._records, self._first_bucket = records, first_bucket

    def detach(self) -> torch.Tensor:
        return self._records.encoded(self._first_bucket)

    def size(self, dim: int) -> int:
        return _ALL_BUCKETS[0] + 1  # Readers narrow what is larger than what they have.

    def narrow(self, dim: int, start: int, length: int) -> _Target:
        return _Target(self._records)


class _Target:
    """Takes a piece of any size that was read."""

    def __init__(self, records: TableRecords) -> None:
        self._records = records

    def detach(self) -> _Target:
        return self

    def size(self) -> _AnySize:
        return _AnySize()

    def copy_(self, encoded: torch.Tensor) -> None:
        self._records.receive(encoded)


class _AnySize:
    """Equal to the size of any tensor."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def table_records(*fields: Any) -> TableRecords:
    """Makes the value of a table from the fields of ``Records``, as they are pickled."""
    return TableRecords.of(Records(*fields))


def _chunk(begin: int, end: int) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size([begin]), torch.Size([end - begin]))


# For torch.load() with weights_only.
torch.serialization.add_safe_globals([table_records])
