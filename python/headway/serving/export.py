# SPDX-License-Identifier: Apache-2.0
"""``export()``: writes a model as a package for serving.

Idea: the caller names what is looked up, and gives the module behind the lookups. ``torch.export`` and AOTInductor
compile it for each bucket. Before, three batches that share a user and differ in all else are computed: if that user's
outputs differ, the model is refused, since a server puts requests of strangers into one batch.

Compiled loops have one thread. By default Inductor compiles the number of threads of the exporting process into them.
Eight ranks that were to have one thread each had 16 on a host of 16 cores, and answered nothing in time.
Source: the compiled parts keep all constants outside of the code (``always_keep_tensor_constants``). Without it
AOTInductor compiles tensors of up to 8 elements into the code, and new weights are ignored.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headway.embedding import HashTableCollection
from headway.serving.cpu_features import cpu_features
from headway.serving.package import (
    TABLES_NAME,
    Bucket,
    CompiledPart,
    DenseFeature,
    Manifest,
    PackageError,
    ServedFeature,
    ServedTable,
)
from headway.serving.unloadable_code import compiler_settings
from headway.training.train_step import DType

#: Largest difference of an output, relative to 1, between batches that differ in other users.
_MOST_DIFFERENCE = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def export(
    folder: str | Path,
    dense: nn.Module,
    tables: HashTableCollection,
    *,
    features: Sequence[ServedFeature],
    buckets: Sequence[Bucket],
    dense_features: Sequence[DenseFeature] = (),
    longest: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: DType = "float32",
    version: str = "1",
) -> Manifest:
    """Writes a package. One process calls it, with all rows.

    Args:
        folder: new or empty.
        dense: what comes behind the lookups. ``forward(embeddings, lengths, dense, items)`` gets, for N items of U
            users and T tokens: the embeddings of each feature, (U or N, dim), or (T, dim) of a sequence; the lengths of
            each sequence, (U,) int64; each dense feature, (U or N, width); the number of items of each user, (U,)
            int64, or None without users. It returns the outputs by name, each with N rows. Rows of padding are 0: users
            without items, items of no user, and tokens of no user. Its mode is ``eval()`` during the call.
        tables: the tables of one rank.
        features: what requests look up. Their tables are among ``tables``.
        buckets: sizes to compile; each takes from seconds to minutes.
        dense_features: numbers of requests that are not looked up.
        longest: most values of a sequence of one user plus items of this user that ``dense`` takes; None: any number.
        device: where the dense part runs when it is served. ``cuda`` compiles it for the present device, on which
            ``dense`` has to be. Tables stay in host memory, and embeddings are copied.
        dtype: of matrix products and attention, by ``torch.autocast``; weights stay as they are. HSTU attention has its
            fast kernels on GPUs for 16 bits alone.
        version: name of this version of the model.

    Returns:
        the manifest of the package.

    Raises:
        PackageError: the folder is not empty, a feature names no table, or outputs depend on other items of the batch.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise PackageError(f"{folder} is not empty")
    if not buckets or not features:
        raise PackageError("a package needs a bucket and a feature that is looked up")
    if tables.num_ranks > 1:
        raise PackageError("export tables of one rank: load the checkpoint with process_group=LOCAL")
    names = [each.name for each in features] + [each.name for each in dense_features]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PackageError(f"feature {twice[0]} is there twice")
    served = _served_tables(tables, features)
    draft = Manifest(
        version=version, torch_version=torch.__version__, seed=tables._seed, tables=served, features=features,
        dense_features=dense_features, longest=longest, outputs=[], parts=[], device=device,
        cpu_features=cpu_features(),
    )  # fmt: skip
    _expect_buckets(draft, buckets)
    if elsewhere := {each.device.type for each in (*dense.parameters(), *dense.buffers())} - {device}:
        raise PackageError(f"dense is on {min(elsewhere)}, and device is {device}")
    modes = {module: module.training for module in dense.modules()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))  # A failed export leaves nothing.
    try:
        dense.eval()
        with torch.no_grad():
            sizes = sorted(set(buckets))
            flat = _Flat(dense, draft, getattr(torch, dtype))
            outputs = [_expect_rows_apart(flat, draft, bucket) for bucket in sizes]
            settings = compiler_settings()
            parts = [_compile(flat, draft, bucket, new, settings) for bucket in sizes]
        tables.save(new / TABLES_NAME)
        manifest = replace(draft, outputs=outputs[0], parts=parts)
        manifest.write(new)
        new.chmod(0o755)
        new.rename(folder)  # Replaces an empty folder.
    except BaseException:
        shutil.rmtree(new)
        raise
    finally:
        for module, was_training in modes.items():
            module.training = was_training
    return manifest


class _Flat(nn.Module):
    """The dense part with one argument for each input, in the order of ``Manifest``."""

    def __init__(self, dense: nn.Module, manifest: Manifest, dtype: torch.dtype) -> None:
        super().__init__()
        self.dense = dense
        self.dtype = dtype
        self._device = manifest.device
        self._features = [each.name for each in manifest.features]
        self._sequences = manifest.sequences
        self._dense_features = [each.name for each in manifest.dense_features]
        self._has_users = manifest.has_users

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(inputs).values())

    def outputs(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        rest = iter(inputs)
        embeddings, lengths, dense = (
            {name: next(rest) for name in names} for names in (self._features, self._sequences, self._dense_features)
        )
        with torch.autocast(self._device, dtype=self.dtype, enabled=self.dtype != torch.float32):
            outputs: dict[str, Tensor] = self.dense(embeddings, lengths, dense, next(rest) if self._has_users else None)
        return {name: output.float() for name, output in outputs.items()}


def _compile(
    flat: _Flat, manifest: Manifest, bucket: Bucket, folder: Path, settings: dict[str, Any]
) -> CompiledPart:
    inputs = [each.to(manifest.device) for each in _trial_batch(manifest, bucket, seed=1)[0]]
    program = torch.export.export(flat, tuple(inputs), strict=False)
    path = folder / f"dense_{bucket.items}_{bucket.users}_{bucket.tokens}.pt2"
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(path),
        inductor_configs={
            "always_keep_tensor_constants": True,
            "aot_inductor.package": True,
            "cpp.threads": 1,
            **settings,
        },
    )
    content = path.read_bytes()
    return CompiledPart(bucket=bucket, file=path.name, num_bytes=len(content), crc32=zlib.crc32(content))


def _expect_rows_apart(flat: _Flat, manifest: Manifest, bucket: Bucket) -> list[str]:
    """Returns the names of the outputs, after a check that those of a user, or item, depend on nothing else.

    Raises:
        PackageError: they do.
    """
    most = _MOST_DIFFERENCE[flat.dtype]
    found = []
    for seed in (1, 2, 3):
        inputs, rows = _trial_batch(manifest, bucket, seed=seed)
        outputs = flat.outputs([each.to(manifest.device) for each in inputs])
        for name, output in outputs.items():
            if len(output) != bucket.items:
                raise PackageError(f"output {name} has {len(output)} rows, and there are {bucket.items} items")
        found.append({name: output[rows].cpu() for name, output in outputs.items()})
    for name, expected in found[0].items():
        for other in found[1:]:
            difference = float((expected - other[name]).abs().max())
            if not difference <= most * max(1.0, float(expected.abs().max())):
                raise PackageError(
                    f"output {name} of an item changes by {difference:.1e} with the other items of its batch, as with "
                    f'a mean over the batch or scale="batch_length", in {bucket}: it cannot be served in batches'
                )
    return list(found[0])


def _trial_batch(manifest: Manifest, bucket: Bucket, *, seed: int) -> tuple[list[Tensor], slice]:
    """Draws the inputs of a batch, whose rest is padding.

    One user, or one item of a model without users, is the same for every seed. Other users stand before and behind it,
    and their numbers of items and lengths of sequences depend on the seed.

    Returns:
        the inputs, and the rows of outputs of the user that stays.
    """
    draw, drawn = np.random.default_rng(0), np.random.default_rng(seed)
    if manifest.has_users:
        users = max(1, min(bucket.users, bucket.items))
        most_items, most_tokens = bucket.items // users, bucket.tokens // users
        if manifest.longest is not None:
            most_items = min(most_items, max(1, manifest.longest // 2))
            most_tokens = min(most_tokens, manifest.longest - most_items)
        items, tokens = drawn.integers(1, most_items + 1, users), drawn.integers(0, most_tokens + 1, users)
        same = users // 2
        items[same], tokens[same] = most_items, most_tokens
    else:  # Each item is alone.
        same = bucket.items // 2
        users = int(drawn.integers(same + 1, bucket.items + 1))
        items, tokens = np.ones(users, dtype=np.int64), np.zeros(users, dtype=np.int64)

    def rows(counts: npt.NDArray[np.int64], size: int, width: int) -> Tensor:
        """Draws ``counts`` rows for each user, and pads them to ``size`` rows."""
        parts = [(draw if user == same else drawn).standard_normal((count, width)) for user, count in enumerate(counts)]
        values = np.concatenate([*parts, np.zeros((size - int(counts.sum()), width))])
        return torch.from_numpy(values.astype(np.float32))

    def padded(counts: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.pad(counts, (0, bucket.users - users)))

    of_axis = {"user": (np.ones(users, dtype=np.int64), bucket.users), "item": (items, bucket.items)}
    dims = {table.name: table.dim for table in manifest.tables}
    inputs = [
        rows(*((tokens, bucket.tokens) if each.pooling is None else of_axis[each.axis]), dims[each.table])
        for each in manifest.features
    ]
    inputs += [padded(tokens) for _ in manifest.sequences]
    inputs += [rows(*of_axis[each.axis], each.width) for each in manifest.dense_features]
    if manifest.has_users:
        inputs.append(padded(items))
    begin = int(items[:same].sum())
    return inputs, slice(begin, begin + int(items[same]))


def _served_tables(tables: HashTableCollection, features: Sequence[ServedFeature]) -> list[ServedTable]:
    configs = {each.name: each for merged in tables.merged_tables for each in merged.tables}
    for feature in features:
        if feature.table not in configs:
            raise PackageError(f"feature {feature.name}: there is no table {feature.table}, only {', '.join(configs)}")
    names = {each.table for each in features}
    return [
        ServedTable(
            name=name,
            dim=each.dim,
            time_to_live=each.time_to_live,
            unknown=each.unknown,
            initializer=ServedTable.describe(each.initializer),
        )
        for name, each in configs.items()
        if name in names
    ]


def _expect_buckets(manifest: Manifest, buckets: Sequence[Bucket]) -> None:
    for bucket in buckets:
        if bucket.items < 1:
            raise PackageError(f"{bucket} has no items")
        if (bucket.users > 0) != manifest.has_users:
            raise PackageError(
                f"{bucket}: users must be {'at least 1' if manifest.has_users else '0'} for these features"
            )
        if (bucket.tokens > 0) != bool(manifest.sequences):
            wanted = "at least 1" if manifest.sequences else "0"
            raise PackageError(f"{bucket}: tokens must be {wanted} for these features")
