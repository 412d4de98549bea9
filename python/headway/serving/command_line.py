# SPDX-License-Identifier: Apache-2.0
"""The command ``headway export``: writes a checkpoint of ``headway train`` as a package for serving."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from headway.checkpoints import TrainingCheckpointError
from headway.cli.one_line_parser import OneLineParser
from headway.config_files import ConfigError
from headway.embedding import CheckpointError
from headway.serving.grm import export_grm
from headway.serving.package import Bucket, PackageError
from headway.training.train_step import DType


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = OneLineParser(prog="headway export", description="writes a checkpoint of headway train for serving")
    parser.add_argument("checkpoint", type=Path, help="of headway train: its --out folder, or one of its checkpoints")
    parser.add_argument("folder", type=Path, help="new or empty; gets the package")
    parser.add_argument(
        "--bucket",
        type=_bucket,
        action="append",
        metavar="ITEMS,USERS,TOKENS",
        help="size to which batches are padded: items to score, users, and events of all histories; may be given "
        "several times (default: 64,1,512 and 512,8,4096)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the dense part will run (default: cpu)"
    )
    parser.add_argument(
        "--dtype",
        choices=get_args(DType),
        default="float32",
        help="of matrix products and attention, by autocast (default: float32)",
    )
    parser.add_argument("--version", default="", help="of the model (default: the name of the checkpoint)")
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        manifest = export_grm(
            options.checkpoint,
            options.folder,
            buckets=options.bucket or [Bucket(64, 1, 512), Bucket(512, 8, 4096)],
            device=options.device,
            dtype=options.dtype,
            version=options.version,
        )
    except (PackageError, TrainingCheckpointError, CheckpointError, ConfigError, OSError) as error:
        print(f"headway export: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    for part in manifest.parts:
        bucket = part.bucket
        print(f"{part.file}: {bucket.items} items, {bucket.users} users, {bucket.tokens} tokens")
    print(f"{options.folder}: version {manifest.version}, compiled in {time.monotonic() - began:.0f} s")
    return 0


def _bucket(text: str) -> Bucket:
    items, users, tokens = (int(part) for part in text.split(","))
    return Bucket(items, users, tokens)
