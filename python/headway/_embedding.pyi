"""Types of the extension for tables of embeddings; see embedding/torch/module.cpp.

K keys, U unique keys, B bags, D columns of a vector, S floats of a row's state, R ranks. Ids are 64 bits of any value,
tables and counts 32 bits; torch's integers have a sign, so the bits count. Tensors are on the device of the table or
deduplicator, those of records on the CPU. Calls on a CUDA device go to the current stream and do not wait for it,
unless they say so or give records or numbers.
"""

import enum
from collections.abc import Sequence

import torch

torch_version: str
ROUTING_VERSION: int
NUM_VIRTUAL_BUCKETS: int

class KeyStatus(enum.Enum):
    FOUND = 0
    INSERTED = 1
    ABSENT = 2
    PENDING = 3
    NO_ROOM = 4

class Workers:
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
        num_known: torch.Tensor | None = None,  # (1,) int32, on CUDA: how many there are, if less than K
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
    def __len__(self) -> int: ...  # K, also if less are known

Records = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # counts_K, steps_K, vectors_KD, states_KS

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
        workers: Workers,
        device: torch.device | None = None,
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
    def num_changes(self) -> int: ...  # grows when a call that changes the table begins, and when it ends
    def begin_step(self, step: int, oldest_in_use: int, /) -> None: ...
    def resume_step(self, step: int, oldest_in_use: int, /) -> None: ...
    def find(self, keys: Keys, /) -> tuple[torch.Tensor, torch.Tensor]: ...  # rows_K, statuses_K
    def find_or_insert(self, keys: Keys, /) -> tuple[torch.Tensor, torch.Tensor]: ...
    def gather(self, keys: Keys, rows_K: torch.Tensor, /) -> torch.Tensor: ...
    def gather_bags(
        self,
        unique: UniqueKeys,
        rows: torch.Tensor,  # (U,)
        *,
        offsets: torch.Tensor | None = None,  # (B + 1,) int64
        weights: torch.Tensor | None = None,  # (K,)
    ) -> torch.Tensor: ...  # (B, D)
    def update(self, keys: Keys, rows: torch.Tensor, gradients: torch.Tensor, *, lr: float, step: int) -> None: ...
    def update_bags(
        self,
        keys: Keys,  # those of `unique`, or fewer known ones
        rows: torch.Tensor,  # (U,)
        unique: UniqueKeys,
        gradients: torch.Tensor,  # (B, D): add_up() of them is what update() would get
        *,
        offsets: torch.Tensor | None = None,  # (B + 1,) int64
        weights: torch.Tensor | None = None,  # (K,)
        lr: float,
        step: int,
    ) -> None: ...
    def insert_or_assign(self, keys: Keys, vectors_KD: torch.Tensor, /) -> torch.Tensor: ...
    def erase(self, keys: Keys, /) -> None: ...
    def evict(self, num_rows: int, /) -> int: ...
    def halve_counts(self) -> None: ...
    def clear(self) -> None: ...
    def list(self, first_bucket: int, end_bucket: int, /) -> Keys: ...
    def list_pending(self, first_bucket: int, end_bucket: int, /) -> Keys: ...
    def export_records(self, keys: Keys, /) -> Records: ...
    def import_records(self, keys: Keys, records: Records, /) -> torch.Tensor: ...
    def import_pending(self, keys: Keys, /) -> None: ...
    def evict_beyond_limit(self) -> int: ...

class UniqueKeys:
    """Made on CUDA, it has room for K keys, whose number only the device knows: ``keys.num_known``."""

    @property
    def keys(self) -> Keys: ...
    @property
    def numbers(self) -> torch.Tensor: ...  # (K,) int32
    def narrow(self, size: int, /) -> UniqueKeys: ...  # once the host knows how many there are
    def __len__(self) -> int: ...  # waits for the device, if only it knows

class Deduplicator:
    def __init__(self, workers: Workers, device: torch.device | None = None) -> None: ...
    def deduplicate(self, keys: Keys, /) -> UniqueKeys: ...
    # The same rank by rank, and counts_R int64.
    def sort_by_owner(self, unique: UniqueKeys, num_ranks: int, /) -> tuple[UniqueKeys, torch.Tensor]: ...
    def hand_out(
        self,
        unique: UniqueKeys,
        values: torch.Tensor,  # (U, D), or (K, D) where only the device knows U
        *,
        offsets: torch.Tensor | None = None,  # (B + 1,) int64
        weights: torch.Tensor | None = None,  # (K,)
    ) -> torch.Tensor: ...  # (B, D)
    def add_up(
        self,
        unique: UniqueKeys,
        values: torch.Tensor,  # (B, D)
        *,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor: ...  # (U, D), or (K, D), of which rows beyond U are not set

def take_as_unique(keys: Keys, /) -> UniqueKeys: ...

# The same in another order, which is that of all (U, D) then; of (U,) int32, or (K,) where only the device knows U.
def reorder(unique: UniqueKeys, order: torch.Tensor, /) -> UniqueKeys: ...
def route(keys: Keys, num_ranks: int, /) -> tuple[torch.Tensor, torch.Tensor]: ...  # order_K int32, counts_R int64
def buckets_of(keys: Keys, /) -> torch.Tensor: ...  # (K,) int32, on the CPU
def first_bucket_of(rank: int, num_ranks: int) -> int: ...

class JoinedFeatures:
    """Features of a batch, one after the other."""

    @property
    def keys(self) -> Keys: ...
    @property
    def offsets(
        self,
    ) -> torch.Tensor | None: ...  # (B + 1,) int64: a bag for each list that is pooled, else for each id
    @property
    def weights(self) -> torch.Tensor | None: ...  # (K,)
    @property
    def num_bags(self) -> list[int]: ...  # by feature

class FeatureJoiner:
    """Puts features together that are looked up in one table."""

    def __init__(
        self, *, names: Sequence[str], tables: Sequence[int], poolings: Sequence[str | None], device: torch.device
    ) -> None: ...
    def join(
        self,
        ids: Sequence[torch.Tensor],  # (K,) each, int64 or int32
        lengths: Sequence[torch.Tensor],  # (B,) each, int64 or int32
        weights: Sequence[torch.Tensor | None],  # (K,) each
        /,
    ) -> JoinedFeatures: ...
