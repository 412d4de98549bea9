"""Types of the C++ extension; see c10d_backend/module.cpp."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import torch
from torch._C._distributed_c10d import Backend, Store, Work

from headway.statistics import GroupStatistics
from headway.tracing import TraceEvent

torch_version: str

class Options(Backend.Options):
    def __init__(
        self,
        *,
        max_lag: int | Literal["auto"] = 0,
        max_lag_limit: int = -1,
        slot_bytes: int | None = None,
        num_channels: int = 1,
        engine: str = "auto",
        timeout: timedelta | None = None,
        connect_timeout: timedelta = ...,
        secret: str = "",
        interface_address: str = "",
        rdma_device: str = "",
        flight_records: int = 256,
    ) -> None: ...
    @property
    def max_lag(self) -> int | Literal["auto"]: ...
    @property
    def max_lag_limit(self) -> int: ...
    @property
    def num_channels(self) -> int: ...
    @property
    def connect_timeout(self) -> timedelta: ...
    @property
    def timeout(self) -> timedelta | None: ...
    @property
    def flight_records(self) -> int: ...
    @property
    def has_slot_bytes(self) -> bool: ...
    @property
    def has_secret(self) -> bool: ...
    engine: str
    rdma_device: str
    slot_bytes: int
    _flight_folder: str
    def _set_secret(self, secret: str) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Options: ...

class HeadwayBackend(Backend):
    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: Options,
        make_reducer: Callable[[Store, int, int, timedelta, str], Any],
    ) -> None: ...
    @property
    def options(self) -> Options: ...
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        channel: int,
        timeout: timedelta = ...,
    ) -> Work: ...
    def set_max_lag(self, max_lag: int) -> None: ...
    def recommended_max_lag(self, channel: int = 0) -> int: ...
    def engines(self) -> list[str]: ...
    def health_message(self) -> str: ...
    def statistics(self) -> GroupStatistics: ...
    def reset_statistics(self) -> None: ...
    def set_trace_capacity(self, capacity: int) -> None: ...
    def drain_trace(self) -> list[TraceEvent]: ...
    def flight_text(self) -> str: ...
