# SPDX-License-Identifier: Apache-2.0
"""``export()``: writes a model as a package for serving.

Idea: the caller names what is looked up, and gives the module behind the lookups. ``torch.export`` and AOTInductor
compile it for each bucket. Before, two batches that share a user and differ in all else are computed: if that user's
outputs differ, the model is refused, since a server puts requests of strangers into one batch.

Source: the compiled parts keep all constants outside of the code (``always_keep_tensor_constants``). Without it
AOTInductor compiles tensors of up to 8 elements into the code, and new weights are ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.embedding import HashTableCollection
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

#: Largest difference of an output, relative to 1, between batches that differ in other users.
_MOST_DIFFERENCE = 1e-4


def export(
    folder: str | Path,
    dense: nn.Module,
    tables: HashTableCollection,
    *,
    features: Sequence[ServedFeature],
    buckets: Sequence[Bucket],
    dense_features: Sequence[DenseFeature] = (),
    longest: int | None = None,
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
        longest: most items and values of a sequence of one user, together, that ``dense`` takes; None: any number.
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
    served = _served_tables(tables, features)
    draft = Manifest(
        version=version, torch_version=torch.__version__, seed=tables._seed, tables=served, features=features,
        dense_features=dense_features, longest=longest, outputs=[], parts=[],
    )  # fmt: skip
    _expect_buckets(draft, buckets)
    was_training = dense.training
    dense.eval()
    try:
        with torch.no_grad():
            outputs = _expect_rows_apart(dense, draft, max(buckets))
            folder.mkdir(parents=True, exist_ok=True)
            parts = [_compile(dense, draft, bucket, folder, outputs) for bucket in sorted(set(buckets))]
    finally:
        dense.train(was_training)
    tables.save(folder / TABLES_NAME)
    manifest = Manifest(**{**_fields(draft), "outputs": outputs, "parts": parts})
    manifest.write(folder)
    return manifest


class _Flat(nn.Module):
    """The dense part with one argument for each input, in the order of ``Manifest``."""

    def __init__(self, dense: nn.Module, manifest: Manifest) -> None:
        super().__init__()
        self.dense = dense
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
        outputs: dict[str, Tensor] = self.dense(embeddings, lengths, dense, next(rest) if self._has_users else None)
        return outputs


def _compile(
    dense: nn.Module, manifest: Manifest, bucket: Bucket, folder: Path, outputs: Sequence[str]
) -> CompiledPart:
    flat = _Flat(dense, manifest)
    inputs = _random_inputs(manifest, bucket, seed=0)
    found = flat.outputs(inputs)
    for name in outputs:
        if len(found[name]) != bucket.items:
            raise PackageError(f"output {name} has {len(found[name])} rows, and there are {bucket.items} items")
    program = torch.export.export(flat, tuple(inputs), strict=False)
    path = folder / f"dense_{bucket.items}_{bucket.users}_{bucket.tokens}.pt2"
    torch._inductor.aoti_compile_and_package(
        program,
        package_path=str(path),
        inductor_configs={"always_keep_tensor_constants": True, "aot_inductor.package": True},
    )
    content = path.read_bytes()
    return CompiledPart(bucket=bucket, file=path.name, num_bytes=len(content), crc32=zlib.crc32(content))


def _expect_rows_apart(dense: nn.Module, manifest: Manifest, bucket: Bucket) -> list[str]:
    """Returns the names of the outputs, after a check that those of the first user or item depend on nothing else."""
    flat = _Flat(dense, manifest)
    one, other = (flat.outputs(_random_inputs(manifest, bucket, seed=seed)) for seed in (1, 2))
    for name in one:
        difference = float((one[name][0] - other[name][0]).abs().max())
        if not difference <= _MOST_DIFFERENCE * max(1.0, float(one[name][0].abs().max())):
            raise PackageError(
                f"output {name} of an item changes by {difference:.1e} with the other items of its batch, as with "
                'BatchNorm in training mode or scale="batch_length": it cannot be served in batches'
            )
    return list(one)


def _random_inputs(manifest: Manifest, bucket: Bucket, *, seed: int) -> list[Tensor]:
    """Draws the inputs of a batch. The first user and its items, or the first item, do not depend on ``seed``."""
    users, items = bucket.users, bucket.items
    same, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    num_items, num_tokens = (items // users, bucket.tokens // users) if users else (1, 0)  # Each user has as many.
    if manifest.longest is not None:
        num_items = min(num_items, max(1, manifest.longest // 2))
        num_tokens = min(num_tokens, manifest.longest - num_items)
    of_first = {"user": 1, "item": num_items}

    def draw(rows: int, shared: int, width: int) -> Tensor:
        shared = min(shared, rows)
        parts = [torch.randn(shared, width, generator=same), torch.randn(rows - shared, width, generator=drawn)]
        return torch.cat(parts)

    dims = {table.name: table.dim for table in manifest.tables}
    inputs = []
    for feature in manifest.features:
        if feature.pooling is None:
            inputs.append(draw(bucket.tokens, num_tokens, dims[feature.table]))
        else:
            inputs.append(draw(users if feature.axis == "user" else items, of_first[feature.axis], dims[feature.table]))
    inputs += [torch.full((users,), num_tokens) for _ in manifest.sequences]
    inputs += [
        draw(users if each.axis == "user" else items, of_first[each.axis], each.width)
        for each in manifest.dense_features
    ]
    if manifest.has_users:
        inputs.append(torch.full((users,), num_items))
    return inputs


def _served_tables(tables: HashTableCollection, features: Sequence[ServedFeature]) -> list[ServedTable]:
    configs = {each.name: each for merged in tables.merged_tables for each in merged.tables}
    for feature in features:
        if feature.table not in configs:
            raise PackageError(f"feature {feature.name}: there is no table {feature.table}, only {', '.join(configs)}")
    names = {each.table for each in features}
    return [
        ServedTable(name=name, dim=each.dim, unknown=each.unknown, initializer=ServedTable.describe(each.initializer))
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


def _fields(manifest: Manifest) -> dict[str, Any]:
    return dict(vars(manifest))
