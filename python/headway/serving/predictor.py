# SPDX-License-Identifier: Apache-2.0
"""``Predictor``: predictions of a package in one process, without an engine.

It defines what a server must answer: the same package and bucket give the same bits on machines with equal instruction
sets and numbers of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import headway.ops  # noqa: F401  (defines torch.ops.headway, which compiled parts may call)
from headway.embedding import LOCAL, FeatureConfig, HashTableCollection, TableConfig
from headway.embedding.config import NoOptimizer
from headway.serving.cpu_features import missing_cpu_features
from headway.serving.package import TABLES_NAME, Bucket, Manifest, PackageError
from headway.serving.requests import Request, RequestError, dense_inputs, sizes_of


class Predictor:
    """Loads a package; its tables into host memory. One thread may call it at a time.

    Args:
        folder: of the package.
        num_threads: of matrix products and attention, as ``headway serve --model-threads``. Another number can give
            other bits on some processors.

    Attributes:
        manifest: of the package.

    Raises:
        PackageError: a file is missing or altered, or another torch has compiled the dense part, or this machine lacks
            the CUDA device or the instruction set.
        CheckpointError: the tables are damaged.
        ValueError: there is no thread.
    """

    def __init__(self, folder: str | Path, *, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        folder = Path(folder)
        self._num_threads = num_threads
        self.manifest = Manifest.read(folder)
        if self.manifest.torch_version != torch.__version__:
            raise PackageError(
                f"{folder} was compiled by torch {self.manifest.torch_version}, and this is {torch.__version__}"
            )
        if missing := missing_cpu_features(list(self.manifest.cpu_features)):
            raise PackageError(
                f"{folder} was compiled for a processor with {' '.join(missing)}, which this one lacks"
            )
        if self.manifest.device == "cuda" and not torch.cuda.is_available():
            raise PackageError(f"{folder} is for a CUDA device, and torch finds none")
        self.manifest.expect_files(folder)
        self._tables = HashTableCollection(
            tables=[
                TableConfig(
                    each.name,
                    dim=each.dim,
                    optimizer=NoOptimizer(),
                    initializer=each.make_initializer(),
                    time_to_live=each.time_to_live,
                    unknown=each.unknown,
                )
                for each in self.manifest.tables
            ],
            features=[
                FeatureConfig(each.name, table=each.table, pooling=each.pooling) for each in self.manifest.features
            ],
            process_group=LOCAL,
            seed=self.manifest.seed,
        )
        self._tables.load(folder / TABLES_NAME, strict=False, embeddings_only=True)
        self._tables.eval()
        self._parts = {
            part.bucket: torch._inductor.aoti_load_package(str(folder / part.file)) for part in self.manifest.parts
        }

    @torch.no_grad()
    def predict(self, request: Request, *, bucket: Bucket | None = None) -> dict[str, Tensor]:
        """Returns the outputs for each item, (N, ...) by name.

        Args:
            request: the items, of one user or several.
            bucket: one of the package, to which the batch is padded; None: the smallest that holds it.

        Raises:
            RequestError: the request does not fit the model, or no bucket holds it.
        """
        sizes = sizes_of(request, self.manifest)
        if bucket is None:
            part = self.manifest.bucket_for(sizes.items, sizes.users, sizes.tokens)
            if part is None:
                raise RequestError(f"{sizes}: no bucket holds it, only {', '.join(map(str, self._parts))}")
            bucket = part.bucket
        elif bucket not in self._parts:
            raise RequestError(f"there is no {bucket}, only {', '.join(map(str, self._parts))}")
        elif not bucket.holds(sizes.items, sizes.users, sizes.tokens):
            raise RequestError(f"{sizes}: {bucket} does not hold it")
        embeddings = self._tables(dict(request.features))
        inputs = dense_inputs(self.manifest, bucket, request, embeddings, sizes)
        with _threads_of_torch(self._num_threads):
            outputs = self._parts[bucket](*(each.to(self.manifest.device) for each in inputs))
        return {name: out[: sizes.items].cpu() for name, out in zip(self.manifest.outputs, outputs, strict=True)}


@contextlib.contextmanager
def _threads_of_torch(count: int) -> Iterator[None]:
    """Lets operators have so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
