#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the lookups of two builds of Headway bit by bit, on random histories of training and evaluation.

A history draws tables, optimizers, limits, poolings, weights and batches from its number, the seed. Both builds run it,
each in processes of its own. They give a digest of the embeddings that lookups return, of the gradients of id weights,
and of all ids and embeddings at the end. Digests must agree.

Example: ``tools/compare_lookups.py ../before/python python --histories 500 --ranks 1 2 3 4``

A key is an id with its table. With ``min_count`` above 1 a key waits for a row until it has so many lookups. Such
tables are looked up once a step here: a gradient of a key that got its row by a later lookup of the
same step was dropped by older builds, and is applied now.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: Stages that remove duplicate keys: none, before the exchange, at the owner after it, or both.
DEDUPS = ("none", "first", "second", "both")


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare_lookups", description=__doc__)
    parser.add_argument("trees", nargs=2, type=Path, help="folders with the package headway, built")
    parser.add_argument("--histories", type=int, default=100, help="histories for each number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--backend", default="headway")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    num_different = 0
    for num_ranks in options.ranks:
        before, after = (run_tree(tree.resolve(), num_ranks, options) for tree in options.trees)
        different = [number for number in range(options.histories) if before[number] != after[number]]
        print(f"{num_ranks} ranks: {options.histories - len(different)} of {options.histories} histories are the same")
        for number in different[:5]:
            print(f"  history {number} differs: {describe(number, num_ranks)}")
        num_different += len(different)
    return 1 if num_different else 0


def run_tree(tree: Path, num_ranks: int, options: argparse.Namespace) -> list[str]:
    """Runs all histories with the package in ``tree``. Returns a digest for each history, of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        arguments = [str(options.histories), str(num_ranks), options.backend, options.device, folder]
        ranks = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *arguments], env=environment)
            for rank in range(num_ranks)
        ]
        statuses = [rank.wait(timeout=3600) for rank in ranks]
        if any(statuses):
            raise SystemExit(f"a rank of {tree} failed")
        by_rank = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(num_ranks)]
    return ["".join(digests) for digests in zip(*by_rank, strict=True)]


def describe(number: int, num_ranks: int) -> str:
    draw = random.Random(number)
    return f"seed {number}, {num_ranks} ranks, {settings_of(draw)}"


def settings_of(draw: random.Random) -> dict[str, Any]:
    """Draws the settings of a history."""
    dims = [draw.choice((1, 3, 8, 32)) for _ in range(draw.randint(1, 3))]
    return {
        "dims": dims,  # Columns of each table.
        "optimizer": draw.choice(("Sgd", "Adagrad", "RowWiseAdagrad", "Adam", "RowWiseAdam")),
        "dedup": draw.choice(DEDUPS),
        "min_count": draw.choice((1, 1, 2)),  # Lookups after which an id gets a row.
        "hot_count": draw.choice((0, 0, 3)),  # Rows with fewer lookups are stored in bfloat16.
        "max_rows": draw.choice((None, None, 40)),  # Limit of rows over all ranks, with eviction.
        "unknown": draw.choice(("initial", "zeros")),  # Embedding in evaluation of an id without a row.
        "reduction": draw.choice(("mean", "sum")),  # How gradients of all ranks are combined.
        "poolings": [draw.choice((None, "sum", "mean")) for _ in range(len(dims) + draw.randint(0, 2))],  # By feature.
        "weighted": draw.choice(("no", "yes", "learned")),  # Weights of ids: none, constant, or with gradients.
        "lookups": draw.choice((1, 1, 2)),  # Lookups per step.
        "clips": draw.random() < 0.3,  # Clip the norm of the gradients.
        "factor": draw.random() < 0.2,  # A learning rate of its own for the first table.
    }


def run_rank(arguments: list[str]) -> None:
    """Runs all histories on one rank, and writes their digests."""
    import torch
    import torch.distributed as dist

    rank, histories, num_ranks = (int(each) for each in arguments[:3])
    backend, device, folder = arguments[3:]
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if num_ranks > 1:
        import headway  # noqa: F401

        store = dist.FileStore(str(Path(folder, "store")), num_ranks)
        dist.init_process_group(backend, rank=rank, world_size=num_ranks, store=store)
    digests = [run_history(number, rank, torch.device(device)) for number in range(histories)]
    Path(folder, f"{rank}.json").write_text(json.dumps(digests))
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def run_history(number: int, rank: int, device: Any) -> str:
    """Runs a history and returns its digest on this rank."""
    import headway.embedding
    import torch
    from headway.embedding import Eviction, FeatureConfig, HashTableCollection, TableConfig

    settings = settings_of(random.Random(number))
    draw = random.Random(1_000_003 * number + rank)
    optimizer = getattr(headway.embedding, settings["optimizer"])(lr=0.125)
    limit = settings["max_rows"]
    tables = HashTableCollection(
        tables=[
            TableConfig(
                f"t{index}",
                dim=dim,
                optimizer=optimizer,
                min_count=settings["min_count"],
                hot_count=settings["hot_count"],
                max_rows=limit,
                eviction=Eviction(policy="lru") if limit else None,
                unknown=settings["unknown"],
            )
            for index, dim in enumerate(settings["dims"])
        ],
        features=[
            FeatureConfig(f"f{index}", table=f"t{index % len(settings['dims'])}", pooling=pooling)
            for index, pooling in enumerate(settings["poolings"])
        ],
        dedup=settings["dedup"],
        gradient_reduction=settings["reduction"],
        num_threads=1 if device.type == "cpu" else None,
        seed=number,
        device=device,
    )
    if settings["factor"]:
        tables.optimizer.set_lr_factor("t0", 0.5)
    digest = hashlib.sha256()

    def add(tensor: Any) -> None:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())

    def make_batch() -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for index in range(len(settings["poolings"])):
            lengths = [draw.choice((0, 1, 1, 2, 5)) for _ in range(draw.choice((0, 3, 6)))]
            ids = torch.tensor([draw.randint(-20, 60) for _ in range(sum(lengths))], dtype=torch.int64, device=device)
            columns = [ids, torch.tensor(lengths, dtype=torch.int64, device=device)]
            if settings["weighted"] != "no":
                weights = torch.tensor([draw.choice((0.5, 1.0, 2.0)) for _ in ids], device=device)
                columns.append(weights.requires_grad_(settings["weighted"] == "learned"))
            batch[f"f{index}"] = tuple(columns)
        return batch

    for step in range(4):
        if step == 2:
            tables.eval()
            with torch.no_grad():
                for output in tables(make_batch()).values():
                    add(output)
            tables.train()
        for _ in range(settings["lookups"] if settings["min_count"] == 1 else 1):
            batch = make_batch()
            outputs = tables(batch)
            gradients = [
                torch.tensor([draw.uniform(-1, 1) for _ in range(output.numel())], device=device).view_as(output)
                for output in outputs.values()
            ]
            for output in outputs.values():
                add(output)
            torch.autograd.backward(list(outputs.values()), gradients)
            for columns in batch.values():
                if len(columns) == 3 and columns[2].grad is not None:
                    add(columns[2].grad)
        if settings["clips"]:
            headway.embedding.clip_grad_norm_([], 0.5, tables=[tables])
        tables.optimizer.step()
    for index in range(len(settings["dims"])):
        ids, embeddings = tables.rows(f"t{index}")
        add(ids)
        add(embeddings)
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2:])
    else:
        sys.exit(main())
