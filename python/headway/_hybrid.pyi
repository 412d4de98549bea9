# SPDX-License-Identifier: Apache-2.0
"""Types of the extension for hybrid training; see hybrid/torch/module.cpp.

Arrays are on the CPU, C-contiguous. Shapes: K ids and B lists of a feature; bags and dim of a merged table (tables of
equal options that share storage).
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from headway._embedding import Initializer, OptimizerOptions

#: Name, table id, ``sum``, ``mean`` or None, ids (K,), lengths (B,), weights (K,) or None.
Feature = tuple[str, int, str | None, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]

class TableSettings:
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
    ) -> None: ...

class RequestRefusedError(RuntimeError): ...

class TableStatus(TypedDict):
    rows: int
    cold_rows: int
    pending: int
    key_bytes: int
    row_bytes: int
    inserted: int
    evicted: int
    expired: int
    refused: int
    dropped_gradients: int
    top_lookups: dict[str, int]  # by name of the table

class GenerationOptions:
    def __init__(
        self,
        *,
        workers: int,
        staleness: int,
        first_step: int,
        is_exact: bool = False,
        sums_parts: bool = True,
        shares_clock: bool = True,  # False: each worker counts steps of its own
    ) -> None: ...

class ServerStatus:
    generation: int
    num_applied: int
    lookups: int
    reads: int
    parts: int
    voids: int
    held: int
    void_not_finite: int
    void_generation: int
    rows: int
    cold_rows: int
    pending: int
    bytes: int
    evicted: int
    refused: int
    dropped_gradients: int
    plain_id_bytes: int
    sent_id_bytes: int
    plain_value_bytes: int
    sent_value_bytes: int
    staleness: list[int]
    samples: int
    lost: dict[str, int]  # by cause
    waits: list[tuple[int, float]]  # lookups and seconds, by dense worker
    tables: list[TableStatus]

class ServerOfWorker(TypedDict):
    name: str
    last: int
    last_s: float
    bytes_sent: int
    bytes_received: int

class WorkerStatus:
    generation: int
    submitted: int
    fetched: int
    trained: int
    read: int
    dropped: int
    waiting_loaders: int
    buffered: int
    buffered_bytes: int
    in_flight: int
    loader_waits: int
    loader_wait_s: float
    answered: int
    lost: dict[str, int]  # by cause
    plain_id_bytes: int
    sent_id_bytes: int
    plain_value_bytes: int
    sent_value_bytes: int
    servers: list[ServerOfWorker]

def query_status(address: str, *, job: str, timeout_s: float) -> ServerStatus: ...
def query_worker_status(address: str, *, job: str, timeout_s: float) -> WorkerStatus: ...

# Offset, num_bytes, crc32, pending, num_keys, first_bucket, end_bucket.
_Block = tuple[int, int, int, bool, int, int, int]

# Lets each server write its file; returns (servers, merged tables): dim, state size, blocks.
def save_tables(
    addresses: Sequence[str],
    *,
    job: str,
    generation: int,
    step: int,
    end: int,
    paths: Sequence[bytes],
    connect_timeout_s: float,
    timeout_s: float,
) -> list[list[tuple[int, int, list[_Block]]]]: ...

# Lets each server read its sources (path, block, dim, state size) into its merged tables (ids of tables that the
# checkpoint has, and the optimizer state of their rows or None). Returns rows without room, (servers, merged tables).
def load_tables(
    addresses: Sequence[str],
    *,
    job: str,
    generation: int,
    step: int,
    sources: Sequence[Sequence[tuple[bytes, _Block, int, int]]],
    tables: Sequence[tuple[Sequence[int], float | None]],
    connect_timeout_s: float,
    timeout_s: float,
) -> list[list[int]]: ...

#: Row indices, marks of rows that servers have stored, counts and steps, (N,); embeddings (N, dim), states (N, S).
IndexedRows = tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.float32],
    npt.NDArray[np.float32],
]

# Gives each server rows of small tables: merged table, and rows with the indices of the server.
def store_rows(
    addresses: Sequence[str],
    *,
    job: str,
    generation: int,
    rows: Sequence[Sequence[tuple[int, IndexedRows]]],
    connect_timeout_s: float,
    timeout_s: float,
) -> None: ...

class EmbeddingClient:
    def __init__(
        self,
        *,
        addresses: Sequence[str],
        job: str,
        tables: Sequence[TableSettings],
        table_ids: Sequence[Sequence[int]],
        table_names: Sequence[Sequence[str]],
        reads_zeros: Sequence[bool],
        timeout_s: float,
        connect_timeout_s: float,
        compress_ids: bool,
        compress_values: bool,
        num_threads: int,
    ) -> None: ...
    def begin_generation(self, generation: int, options: GenerationOptions, *, token: int) -> None: ...
    def start(self, step: int, worker: int, features: Sequence[Feature]) -> None: ...
    def wait(self, step: int, worker: int) -> list[npt.NDArray[np.float32]]: ...  # (bags, dim) of each merged table
    def return_gradients(
        self, step: int, worker: int, gradients: Sequence[tuple[float, npt.NDArray[np.float32] | None]]
    ) -> None: ...
    def drop(self, step: int, worker: int, cause: str) -> None: ...
    def is_finished(self, step: int, worker: int) -> bool: ...
    def finish(self, step: int, worker: int) -> bool: ...  # False: gradients were dropped, since they are not finite
    def waits(self) -> list[tuple[str, float]]: ...  # peers, and seconds that were waited for them
    def read(self, features: Sequence[Feature]) -> list[npt.NDArray[np.float32]]: ...
    def end_at(self, step: int) -> None: ...
    def status(self) -> list[ServerStatus]: ...

#: Address of the embedding worker, number of the loader, number of the batch.
Reference = tuple[str, int, int]
#: Row indices (K,) of a feature of a small table, lengths (B,), weights (K,) or None.
SmallFeature = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32] | None]
#: Bags of each feature, (bags, dim) of each merged table, features and rows of small tables (none: an empty batch).
Found = tuple[list[int], list[npt.NDArray[np.float32]], list[SmallFeature], list[IndexedRows]]

class EmbeddingWorkers:
    def __init__(
        self,
        *,
        job: str,
        tables: Sequence[TableSettings],
        table_ids: Sequence[Sequence[int]],
        table_names: Sequence[Sequence[str]],
        reads_zeros: Sequence[bool],
        features: Sequence[tuple[str, int, str | None]],
        timeout_s: float,
        compress_ids: bool,
        compress_values: bool,
        small: Sequence[int],  # merged tables that get row indices
    ) -> None: ...
    def connect(self, address: str, *, name: str, connect_timeout_s: float) -> None: ...
    def addresses(self) -> list[str]: ...  # connected
    def begin_generation(self, generation: int, options: GenerationOptions, *, token: int) -> None: ...
    def submit(
        self, reference: Reference, features: Sequence[Feature]
    ) -> str | None: ...  # why the worker has not taken it: it is leaving or lost
    def start(
        self, step: int, worker: int, reference: Reference | None
    ) -> bool: ...  # False: the connection with the worker is lost, and no batch needed it
    def wait(self, step: int, worker: int) -> Found: ...
    def return_gradients(
        self, step: int, worker: int, gradients: Sequence[tuple[float, npt.NDArray[np.float32] | None]]
    ) -> None: ...
    def drop(self, step: int, worker: int, cause: str) -> None: ...
    def is_finished(self, step: int, worker: int) -> bool: ...
    def finish(self, step: int, worker: int) -> bool: ...  # False: gradients were dropped, since they are not finite
    def waits(self) -> list[tuple[str, float]]: ...  # peers, and seconds that were waited for them
    def read(self, reference: Reference) -> Found: ...
    def end_at(self, step: int) -> None: ...
