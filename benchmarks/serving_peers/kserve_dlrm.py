# SPDX-License-Identifier: Apache-2.0
"""A rank that serves the DLRM in Python: KServe's server, the model in eager mode, and batches of an asyncio queue.

Run it with a Python that has kserve and torch; ``kserve_ranks.py`` starts it. It listens with the Open Inference
Protocol over gRPC, and takes the same requests as ``headway_serve`` of the exported DLRM.

Tables lie in one of two ways. ``whole``: each rank has all tables, and ranks know nothing of each other. ``sharded``:
a rank has some of the tables, as TorchRec shards them table-wise. A batch is then two all-to-alls over Gloo, of ids to
the owners and of rows back, in which all ranks take part, if need be with an empty batch.

Example: --max-rows 512, --batch-delay 1000. A request of 64 rows comes at 0 ms. At 1 ms its batch begins, with all
that wait by then, up to 512 rows. It computes on a thread, while the loop goes on to receive requests. The next batch
begins when this one has ended, if its oldest request has waited for 1 ms by then.

Shapes: T tables, N rows of a batch, F dense inputs, D columns, R ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.dlrm_inference.placement import place_tables

DENSE, OUTPUT = "dense", "click"
_COLLECTIVE_TIMEOUT = timedelta(seconds=30)


class Waiting(NamedTuple):
    """A request that waits for a batch."""

    ids_TN: npt.NDArray[np.int64]
    dense_NF: npt.NDArray[np.float32]
    accepted: float
    prediction: asyncio.Future[npt.NDArray[np.float32]]

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return int(self.ids_TN.shape[1])


class Lookup(Protocol):
    """Looks up the rows of a batch."""

    def __call__(self, ids_TN: torch.Tensor) -> list[torch.Tensor] | None:
        """T tensors (N, D), table 0 first. None: no rank has a request."""


class ZeroPaddedTables:
    """Tables in one matrix, each with one more row of zeros, which ids without a row find."""

    def __init__(self, config: DlrmConfig, tables: Sequence[int]) -> None:
        shard = EmbeddingShard(config, tables)
        rows = [config.table_rows[table] for table in tables]
        ends = [first + count for first, count in zip(shard.first_row, rows, strict=True)]
        zeros = torch.zeros(1, config.dim)
        parts = []
        for first, end in zip(shard.first_row, ends, strict=True):
            parts += [shard.weight[first:end], zeros]
        self._weight = torch.cat(parts) if parts else torch.empty(0, config.dim)
        self._rows_T1 = torch.tensor(rows, dtype=torch.int64)[:, None]
        first_rows = [first + i for i, first in enumerate(shard.first_row)]
        self._first_T1 = torch.tensor(first_rows, dtype=torch.int64)[:, None]

    def lookup(self, ids_TN: torch.Tensor) -> torch.Tensor:
        """Rows of ids of these tables, (T * N, D)."""
        return self._weight.index_select(0, (torch.minimum(ids_TN, self._rows_T1) + self._first_T1).flatten())


class WholeTables:
    """Looks up in tables of this process."""

    def __init__(self, config: DlrmConfig) -> None:
        self._tables = ZeroPaddedTables(config, range(config.num_tables))

    def __call__(self, ids_TN: torch.Tensor) -> list[torch.Tensor] | None:
        """See ``Lookup``."""
        num_tables, num_rows = ids_TN.shape
        if num_rows == 0:
            return None
        return list(self._tables.lookup(ids_TN).view(num_tables, num_rows, -1).unbind(0))


class ShardedTables:
    """Looks up in tables that are sharded table-wise. All ranks call it in the same order."""

    def __init__(self, config: DlrmConfig, *, rank: int, num_ranks: int) -> None:
        self._placement = place_tables(config.table_rows, num_ranks=num_ranks)
        self._num_tables = [len(tables) for tables in self._placement.tables_of_rank]
        self._own = self._num_tables[rank]
        self._arrival_order = torch.tensor(self._placement.arrival_order)
        self._tables = ZeroPaddedTables(config, self._placement.tables_of_rank[rank])
        self._dim = config.dim

    def __call__(self, ids_TN: torch.Tensor) -> list[torch.Tensor] | None:
        """See ``Lookup``."""
        num_rows = ids_TN.shape[1]
        sizes = [torch.empty(1, dtype=torch.int64) for _ in self._num_tables]
        dist.all_gather(sizes, torch.tensor([num_rows]))
        rows_of_rank = [int(size) for size in sizes]
        if not any(rows_of_rank):
            return None
        ids_to = [count * num_rows for count in self._num_tables]
        ids_from = [self._own * count for count in rows_of_rank]
        ids = torch.empty(sum(ids_from), dtype=torch.int64)
        dist.all_to_all_single(ids, ids_TN.index_select(0, self._arrival_order).flatten(), ids_from, ids_to)
        # One lookup for all ranks, then their rows one rank after the other.
        by_rank = [
            part.view(self._own, count) for part, count in zip(torch.split(ids, ids_from), rows_of_rank, strict=True)
        ]
        rows = self._tables.lookup(torch.cat(by_rank, dim=1)).view(self._own, -1, self._dim)
        sent = torch.cat([part.reshape(-1, self._dim) for part in torch.split(rows, rows_of_rank, dim=1)])
        received = torch.empty(sum(ids_to), self._dim)
        dist.all_to_all_single(received, sent, ids_to, ids_from)
        return self._placement.in_table_order(received) if num_rows > 0 else []


class Batcher:
    """Batches requests, and computes one batch after the other on a thread."""

    def __init__(self, model: Dlrm, lookup: Lookup, *, max_rows: int, batch_delay_s: float, is_sharded: bool) -> None:
        self._model = model
        self._lookup = lookup
        self._max_rows = max_rows
        self._batch_delay_s = batch_delay_s
        self._is_sharded = is_sharded
        self._waiting: deque[Waiting] = deque()
        self._num_rows = 0
        self._changed = asyncio.Event()
        self._stopped = False

    async def predict(
        self, ids_TN: npt.NDArray[np.int64], dense_NF: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """(N,) probabilities, when their batch is computed.

        Raises:
            ValueError: the request is larger than a batch.
        """
        if ids_TN.shape[1] > self._max_rows:
            raise ValueError(f"the request has {ids_TN.shape[1]} rows, and the limit is {self._max_rows}")
        prediction: asyncio.Future[npt.NDArray[np.float32]] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(ids_TN, dense_NF, time.monotonic(), prediction))
        self._num_rows += ids_TN.shape[1]
        if len(self._waiting) == 1 or self._num_rows >= self._max_rows:
            self._changed.set()
        return await prediction

    def stop(self) -> None:
        """Ends ``run()``."""
        self._stopped = True
        self._changed.set()

    async def run(self) -> None:
        """Computes batches until ``stop()``."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as thread:
            while not self._stopped:
                batch = await self._take_batch()
                try:
                    predictions = await loop.run_in_executor(thread, self._compute, batch)
                except Exception as error:
                    for each in batch:
                        if not each.prediction.done():
                            each.prediction.set_exception(error)
                    continue
                first = 0
                for each in batch:
                    if not each.prediction.done():  # Its call may be over.
                        each.prediction.set_result(predictions[first : first + each.num_rows])
                    first += each.num_rows

    async def _take_batch(self) -> list[Waiting]:
        """Waits until a batch is full or its oldest request has waited long enough. Sharded, it may be empty."""
        idle_until = time.monotonic() + self._batch_delay_s if self._is_sharded else None
        while not self._waiting and not self._stopped:
            if idle_until is not None and time.monotonic() >= idle_until:
                return []
            await self._wait_until(idle_until)
        while self._waiting and self._num_rows < self._max_rows:
            due = self._waiting[0].accepted + self._batch_delay_s
            if time.monotonic() >= due:
                break
            await self._wait_until(due)
        batch: list[Waiting] = []
        room = self._max_rows
        while self._waiting and self._waiting[0].num_rows <= room:
            batch.append(self._waiting.popleft())
            room -= batch[-1].num_rows
        self._num_rows -= self._max_rows - room
        return batch

    async def _wait_until(self, moment: float | None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if moment is None else max(0.0, moment - time.monotonic())):
                await self._changed.wait()

    @torch.inference_mode()
    def _compute(self, batch: Sequence[Waiting]) -> npt.NDArray[np.float32]:
        config = self._model.config
        ids_TN = np.empty((config.num_tables, 0), dtype=np.int64)
        if batch:
            ids_TN = np.concatenate([each.ids_TN for each in batch], axis=1)
        pooled = self._lookup(torch.from_numpy(ids_TN))
        if not pooled:
            return np.empty(0, dtype=np.float32)
        dense_NF = torch.from_numpy(np.concatenate([each.dense_NF for each in batch]))
        predictions: npt.NDArray[np.float32] = self._model.predict(self._model.bottom(dense_NF), pooled).numpy()
        return predictions


def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM."""
    # Imported here, as kserve is not a requirement of the benchmarks, and reads the command line.
    import kserve  # type: ignore[import-not-found, unused-ignore]

    class ServedDlrm(kserve.Model):  # type: ignore[misc, unused-ignore]
        """KServe's view of the batcher."""

        def __init__(self, config: DlrmConfig, lookup: Lookup) -> None:
            super().__init__("model")
            self._names = [f"table_{table}.ids" for table in range(config.num_tables)]
            self._config, self._lookup = config, lookup
            self._batcher: Batcher | None = None
            self.engine = True  # KServe then awaits start_engine() beside its servers.
            self.ready = True

        async def start_engine(self) -> None:
            """Computes batches."""
            self._batcher = Batcher(
                Dlrm(self._config),
                self._lookup,
                max_rows=options.max_rows,
                batch_delay_s=options.batch_delay / 1e6,
                is_sharded=options.tables == "sharded",
            )
            await self._batcher.run()

        def stop_engine(self) -> None:
            """Ends the batches."""
            if self._batcher is not None:
                self._batcher.stop()

        async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
            """Answers a request."""
            assert self._batcher is not None
            inputs = {each.name: each.as_numpy() for each in payload.inputs}
            ids_TN = np.stack([inputs[name] for name in self._names])
            predictions = await self._batcher.predict(ids_TN, inputs[DENSE])
            output = kserve.InferOutput(OUTPUT, [len(predictions)], "FP32")
            output.set_data_from_numpy(predictions)
            return kserve.InferResponse(payload.id, self.name, [output], model_version="1")

    config = DlrmConfig(table_rows=tuple(map(int, options.table_rows.split(","))))
    model = ServedDlrm(config, make_lookup(options, config))
    server = kserve.ModelServer(
        http_port=options.http_port, grpc_port=options.grpc_port, enable_latency_logging=False, grace_period=1
    )
    for name in ("kserve", "uvicorn"):  # A line for each request would cost it time.
        logging.getLogger(name).setLevel(logging.WARNING)
    server.start([model])


def make_lookup(options: argparse.Namespace, config: DlrmConfig) -> Lookup:
    """Loads the tables of this rank, and connects it with the others if they share them."""
    if options.tables == "whole":
        return WholeTables(config)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{options.store}",
        rank=options.rank,
        world_size=options.size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    return ShardedTables(config, rank=options.rank, num_ranks=options.size)


def main(argv: Sequence[str]) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="kserve_dlrm", description=__doc__, allow_abbrev=False)
    parser.add_argument("--tables", choices=("whole", "sharded"), required=True)
    parser.add_argument("--table-rows", required=True, help="rows of each table, separated by commas")
    parser.add_argument("--store", required=True, help="file that does not exist, by which ranks find each other")
    for name in ("--rank", "--size", "--grpc-port", "--http-port", "--max-rows", "--batch-delay"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop instead of asyncio's own loop")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.argv = sys.argv[:1]  # KServe reads it, too.
    if options.uvloop:
        import uvloop  # type: ignore[import-not-found, unused-ignore]

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.set_event_loop(asyncio.new_event_loop())  # KServe asks for one before it runs its own.
    serve(options)
    sys.stdout.flush()
    os._exit(0)  # The other ranks may have left a collective that a thread still waits for.


if __name__ == "__main__":
    main(sys.argv[1:])
