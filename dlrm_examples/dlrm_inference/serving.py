# SPDX-License-Identifier: Apache-2.0
"""Exports the DLRM for serving (``headway.serving``): a request has rows with one list of ids per table, and numbers.

``python -m dlrm_examples.dlrm_inference.serving FOLDER`` writes a package with the table sizes of Criteo Kaggle, 33.8
million rows in all, or with smaller tables by ``--divide-rows``. Needs memory for the rows twice.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from headway.embedding import LOCAL, Constant, FeatureConfig, HashTableCollection, TableConfig
from headway.embedding.config import NoOptimizer
from headway.serving import Bucket, DenseFeature, Manifest, PackageError, ServedFeature, export
from torch import Tensor, nn

from dlrm_examples.dlrm_inference.model import Dlrm, DlrmConfig, EmbeddingShard
from dlrm_examples.support.data.criteo import KAGGLE_CARDINALITIES

DENSE = "dense"  #: Name of the dense features.
OUTPUT = "click"
_ROWS_AT_ONCE = 1 << 20


def table_name(table: int) -> str:
    """Name of a table, and of the feature that is looked up in it."""
    return f"table_{table}"


class ServedDlrm(nn.Module):
    """The two MLPs and the interaction, as ``headway.serving.export()`` takes them.

    Args:
        model: its weights are shared.
    """

    _pair: Tensor

    def __init__(self, model: Dlrm) -> None:
        super().__init__()
        self._num_tables = model.config.num_tables
        self._bottom = nn.ModuleList(_linear(*layer) for layer in model._bottom)
        self._top = nn.ModuleList(_linear(*layer) for layer in model._top)
        self.register_buffer("_pair", model._pair)

    def forward(
        self, embeddings: Mapping[str, Tensor], lengths: object, dense: Mapping[str, Tensor], items: object
    ) -> dict[str, Tensor]:
        """Returns the probability of a click of each row, (N,)."""
        bottom = dense[DENSE]
        for layer in self._bottom:
            bottom = torch.relu(layer(bottom))
        vectors = torch.stack([bottom, *(embeddings[table_name(i)] for i in range(self._num_tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        hidden = torch.cat([bottom, products.index_select(1, self._pair)], dim=1)
        for layer in self._top[:-1]:
            hidden = torch.relu(layer(hidden))
        return {OUTPUT: torch.sigmoid(self._top[-1](hidden)).squeeze(1)}


def export_dlrm(
    folder: Path, config: DlrmConfig, *, buckets: Sequence[Bucket], is_single: bool = True, version: str = "1"
) -> Manifest:
    """Writes a package of the model that ``config`` describes. See ``headway.serving.export()``.

    Args:
        folder: new or empty.
        config: sizes and seed.
        buckets: sizes of batches, in rows.
        is_single: each list of ids has one id. Otherwise the embeddings of a list are added.
        version: of the model.
    """
    names = [table_name(table) for table in range(config.num_tables)]
    tables = HashTableCollection(
        tables=[
            TableConfig(name, dim=config.dim, optimizer=NoOptimizer(), initializer=Constant(0.0)) for name in names
        ],
        features=[FeatureConfig(name, table=name) for name in names],
        process_group=LOCAL,
    )
    for table, name in enumerate(names):
        rows = EmbeddingShard(config, [table]).weight
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            tables.insert_rows(name, torch.arange(first, first + len(part)), part)
    return export(
        folder,
        ServedDlrm(Dlrm(config)),
        tables,
        features=[ServedFeature(name=name, table=name, is_single=is_single) for name in names],
        dense_features=[DenseFeature(name=DENSE, width=config.num_dense)],
        buckets=buckets,
        version=version,
    )


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="dlrm_examples.dlrm_inference.serving", description=__doc__)
    parser.add_argument("folder", type=Path, help="new or empty; gets the package")
    parser.add_argument("--divide-rows", type=int, default=1, metavar="N", help="tables have one Nth of their rows")
    parser.add_argument("--buckets", type=int, nargs="+", default=[64, 512], metavar="ROWS", help="sizes of batches")
    parser.add_argument("--version", default="1", help="of the model")
    options = parser.parse_args(argv)
    began = time.monotonic()
    sizes = tuple(max(1, rows // options.divide_rows) for rows in KAGGLE_CARDINALITIES)
    try:
        manifest = export_dlrm(
            options.folder,
            DlrmConfig(table_rows=sizes),
            buckets=[Bucket(rows) for rows in options.buckets],
            version=options.version,
        )
    except (PackageError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder}: version {manifest.version}, {sum(sizes):,} rows, {time.monotonic() - began:.0f} s")
    return 0


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
