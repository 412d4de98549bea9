# SPDX-License-Identifier: Apache-2.0
"""Types of the embedding-table extension; see embedding/torch/module.cpp.

Shapes: K keys, U unique keys, B bags, D columns of an embedding, S floats of optimizer state per row, R ranks.
Ids are arbitrary 64-bit values; table indices and counts have 32 bits. They are unsigned: signed torch tensors carry
the same bits. Tensors are on the device of the table or deduplicator; tensors of ``Records`` are on the CPU. Calls on a
CUDA device are enqueued on the current stream and do not wait for it, unless they return records or Python numbers, or
their comment says so.
"""

import enum
from collections.abc import Sequence

import torch
import torch.distributed as dist

torch_version: str
ROUTING_VERSION: int
NUM_VIRTUAL_BUCKETS: int

class KeyStatus(enum.Enum):
    FOUND = 0
    INSERTED = 1
    ABSENT = 2
    PENDING = 3
    NO_ROOM = 4

class ThreadPool:
    def __init__(self, num_threads: int) -> None: ...

class Initializer:
    @staticmethod
    def constant(value: float, /) -> Initializer: ...
    @staticmethod
    def uniform(low: float, high: float, seed: int, /) -> Initializer: ...
    @staticmethod
    def normal(mean: float, deviation: float, seed: int, /) -> Initializer: ...

class OptimizerOptions:
    def __init__(
        self,
        *,
        kind: str,
        eps: float,
        beta1: float,
        beta2: float,
        initial_accumulator_value: float,
        weight_decay: float,
        decoupled_weight_decay: bool,
    ) -> None: ...

class Keys:
    def __init__(
        self,
        ids: torch.Tensor,  # (K,) int64
        tables: torch.Tensor | None = None,  # (K,) int32
        *,
        table: int = 0,
        counts: torch.Tensor | None = None,  # (K,) int32
        are_unique: bool = False,
        num_known: torch.Tensor | None = None,  # (1,) int32, on CUDA: number of valid keys; None: all K
    ) -> None: ...
    @property
    def ids(self) -> torch.Tensor: ...
    @property
    def tables(self) -> torch.Tensor | None: ...
    @property
    def table(self) -> int: ...
    @property
    def counts(self) -> torch.Tensor | None: ...
    @property
    def are_unique(self) -> bool: ...
    @property
    def num_known(self) -> torch.Tensor | None: ...
    def to(self, device: torch.device, /) -> Keys: ...
    def __len__(self) -> int: ...  # K, even if num_known is less

Records = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # counts_K, steps_K, embeddings_KD, states_KS

# The fields of headway.embedding.table_records.Records.
_Fragment = tuple[
    int,
    int,
    tuple[int, int],
    int,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
]

class Table:
    def __init__(
        self,
        *,
        dim: int,
        initializer: Initializer,
        optimizer: OptimizerOptions,
        max_rows: int | None,
        eviction: str,
        high_water: int | None,
        low_water: int | None,
        time_to_live: int,
        min_count: int,
        max_pending: int | None,
        hot_count: int,
        thread_pool: ThreadPool,
        device: torch.device | None = None,
        eviction_batch: int | None = None,
    ) -> None: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def generation(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def state_size(self) -> int: ...
    def size(self) -> dict[str, int]: ...
    def statistics(self) -> dict[str, int]: ...
    def num_changes(self) -> int: ...  # Incremented when a call that changes the table begins, and when it ends.
    # From now on lookups belong to `step`; rows looked up in `oldest_in_use` or later are not evicted.
    def begin_step(self, step: int, oldest_in_use: int, /) -> None: ...
    def resume_step(self, step: int, oldest_in_use: int, /) -> None: ...
    def find(self, keys: Keys, /) -> tuple[torch.Tensor, torch.Tensor]: ...  # rows_K, statuses_K
    def find_or_insert(self, keys: Keys, /) -> tuple[torch.Tensor, torch.Tensor]: ...
    def gather(self, keys: Keys, rows_K: torch.Tensor, /) -> torch.Tensor: ...
    def update(self, keys: Keys, rows: torch.Tensor, gradients: torch.Tensor, *, lr: float, step: int) -> None: ...
    def insert_or_assign(self, keys: Keys, embeddings_KD: torch.Tensor, /) -> torch.Tensor: ...
    def erase(self, keys: Keys, /) -> None: ...
    def evict(self, num_rows: int, /) -> int: ...
    def halve_counts(self) -> None: ...
    def clear(self) -> None: ...
    def list(self, first_bucket: int, end_bucket: int, /) -> Keys: ...
    def list_pending(self, first_bucket: int, end_bucket: int, /) -> Keys: ...
    def export_records(self, keys: Keys, /) -> Records: ...
    # Imports the rows that `rank` owns, or the pending keys. MemoryError: there is no room for one.
    def import_records(self, records: _Fragment, *, pending: bool, rank: int, num_ranks: int) -> None: ...
    def evict_beyond_limit(self) -> int: ...

# Fields of a block: offset, num_bytes, crc32, pending, num_keys, first_bucket, end_bucket.
_Block = tuple[int, int, int, bool, int, int, int]

class RecordFileWriter:
    """Writes records of tables into a new file. An error of the system is a RuntimeError that names the file."""

    def __init__(self, path: str | bytes, *, records_per_block: int) -> None: ...
    # Writes keys of virtual buckets [first_bucket, end_bucket): with rows, or pending ones. Reads the table meanwhile.
    def write(self, table: Table, *, pending: bool, first_bucket: int, end_bucket: int) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    # Waits until all is on disk. Returns the blocks, in the order of writing.
    def finish(self) -> list[_Block]: ...

# Ranges of virtual buckets, (first, end), in which a table with so many keys is written.
def bucket_ranges(num_keys: int, records_per_block: int) -> list[tuple[int, int]]: ...

# Imports the records that `rank` owns. Sources: path, block, dim, state_size. Targets: table, the numbers of the tables
# whose records it takes, and the optimizer state of its rows (None: that of the records).
# RuntimeError: a file cannot be read, is truncated or altered. ValueError: widths do not fit.
def load_records(
    sources: Sequence[tuple[str | bytes, _Block, int, int]],
    targets: Sequence[tuple[Table, Sequence[int], float | None]],
    *,
    rank: int,
    num_ranks: int,
) -> None: ...

# Bytes of a fragment, (1, bytes) uint8, and its columns as views of them.
# ValueError: columns have different lengths; the bytes are of another format, truncated or altered.
def encode_records(records: _Fragment, /) -> torch.Tensor: ...
def decode_records(encoded: torch.Tensor, /) -> _Fragment: ...

class UniqueKeys:
    """The distinct keys of a batch.

    On CUDA its tensors have room for K keys; only the device knows the number U (``keys.num_known``).
    """

    @property
    def keys(self) -> Keys: ...
    @property
    def inverse_indices(self) -> torch.Tensor: ...  # (K,) int32: index of the unique key of each key
    def narrow(self, size: int, /) -> UniqueKeys: ...  # Shrinks the tensors to `size`, once the host knows U.
    def __len__(self) -> int: ...  # U; waits for the device if only the device knows it.

class Deduplicator:
    def __init__(self, thread_pool: ThreadPool, device: torch.device | None = None) -> None: ...
    def deduplicate(self, keys: Keys, /) -> UniqueKeys: ...
    # The unique keys grouped by owner rank, and the number of each rank, counts_R (R,) int64.
    def sort_by_owner(self, unique: UniqueKeys, num_ranks: int, /) -> tuple[UniqueKeys, torch.Tensor]: ...
    # Expands one row per unique key to one row per bag: the weighted sum of its keys' rows.
    def expand(
        self,
        unique: UniqueKeys,
        values: torch.Tensor,  # (U, D), or (K, D) if only the device knows U
        *,
        offsets: torch.Tensor | None = None,  # (B + 1,) int64
        weights: torch.Tensor | None = None,  # (K,)
    ) -> torch.Tensor: ...  # (B, D)
    # Transpose of expand(): adds the row of each bag to the row of each of its unique keys.
    def reduce(
        self,
        unique: UniqueKeys,
        values: torch.Tensor,  # (B, D)
        *,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor: ...  # (U, D); on CUDA (K, D), rows from U on are undefined

# Treats all keys as distinct, without a search for duplicates.
def from_unique(keys: Keys, /) -> UniqueKeys: ...

# The unique keys in another order, which (U, D) tensors then follow too. order[i] is the present index of the key that
# comes i-th: (U,) int32, or (K,) if only the device knows U.
def reorder(unique: UniqueKeys, order: torch.Tensor, /) -> UniqueKeys: ...

# Indices of the keys grouped by owner rank, order_K int32, and the number of keys of each rank, counts_R int64.
def route(keys: Keys, num_ranks: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...
def buckets_of(keys: Keys, /) -> torch.Tensor: ...  # (K,) int32, on the CPU: virtual bucket of each key
def first_bucket_of(rank: int, num_ranks: int) -> int: ...

# The arguments of one all_to_all_single() that sends rows of G merged tables: receive buffer, send buffer, receive
# splits and send splits. values_G: (rows, columns) each, rank by rank; counts: (G, R) int64 on the CPU, rows for and
# from each rank. One table is sent in place, with splits in rows; the buffers of several are flat.
# ValueError: counts do not add up to the rows.
def all_to_all_arguments(
    values_G: Sequence[torch.Tensor], sent_GR: torch.Tensor, received_GR: torch.Tensor, /
) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]: ...

# Unpacks a receive buffer: (rows, columns) for each merged table, rank by rank.
def by_table(buffer: torch.Tensor, counts_GR: torch.Tensor, widths_G: Sequence[int], /) -> list[torch.Tensor]: ...

class LookupBatch:
    """The lookup of one batch, between ``TableLookup.begin()`` and ``finish()``."""

class TableLookup:
    """Lookups in the tables of a collection; see embedding/torch/tensor_lookup.hpp.

    Lists have one element per merged table or per feature. The features of a merged table are adjacent, in the order of
    the tables.
    """

    def __init__(
        self,
        *,
        tables: Sequence[Table],
        table_ids: Sequence[Sequence[int]],
        hides_unknown: Sequence[bool],
        names: Sequence[str],
        feature_tables: Sequence[int],
        poolings: Sequence[str | None],
        group: dist.ProcessGroup | None,
        dedup: str,
        thread_pool: ThreadPool,
        device: torch.device,
        by_feature: bool = True,
    ) -> None: ...
    def begin(
        self,
        ids: Sequence[torch.Tensor],
        lengths: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor | None],
        *,
        inserts: bool,
        evaluates: bool,
        counts_refused: bool,
    ) -> LookupBatch: ...
    def finish(self, batch: LookupBatch, anchors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
    def start_keys(self, batch: LookupBatch, /) -> None: ...
    def look_up(self, batch: LookupBatch, *, inserts: bool) -> None: ...
    def start_embeddings(self, batch: LookupBatch, /) -> None: ...
    def take_embeddings(self, batch: LookupBatch, /) -> list[torch.Tensor]: ...
    def own_refused(self, batch: LookupBatch, /) -> torch.Tensor: ...  # () int64
    def start_gradients(self, batch: LookupBatch, gradients: Sequence[torch.Tensor], *, factor: float) -> None: ...
    def update(self, batch: LookupBatch, *, steps: Sequence[int], rates: Sequence[float]) -> None: ...
    def read_ahead(
        self, next: Sequence[LookupBatch], present: Sequence[LookupBatch], *, step: int, oldest_in_use: int
    ) -> None: ...
    def drain(self) -> None: ...
    def has_deferred(self) -> bool: ...
    def forget_ahead(self) -> None: ...
    def has_ahead(self) -> bool: ...
    def num_refused(self, batch: LookupBatch, /) -> int: ...
    def replace_tables(self, tables: Sequence[Table], /) -> None: ...
    def has_gradients(self, index: int, /) -> bool: ...
    # (W, D) values and (1,) int32 number of valid rows; None: all
    def new_gradients(self, index: int, /) -> list[tuple[torch.Tensor, torch.Tensor | None]]: ...
    def expect_unchanged(self) -> None: ...
    def apply(self, *, step: int, rates: Sequence[dict[int, float]], divisors: Sequence[float]) -> None: ...
    def drop(self) -> None: ...
    def scale(self, factor: torch.Tensor, /) -> None: ...
    def norm(self, index: int, /) -> torch.Tensor: ...  # () float64
    def traffic(self) -> dict[str, int]: ...
    def time_waits(self, is_enabled: bool, /) -> None: ...
    def waited_s(self) -> float: ...
    def register_as(self, name: str, /) -> None: ...  # ValueError: the name is in use, or the lookup has another one.
    def script_object(self) -> torch.ScriptObject: ...  # The same lookup, as torch.classes.headway.TableLookup.
