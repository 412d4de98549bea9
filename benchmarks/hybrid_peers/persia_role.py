# SPDX-License-Identifier: Apache-2.0
"""The loader and the dense worker of Persia in the benchmark ``hybrid``: the same model and batches.

``PYTHON -m benchmarks.hybrid_peers.persia_role loader|dense SETTINGS`` with a JSON object, where PYTHON is an
interpreter that has Persia. The dense worker prints a JSON object with the seconds of each round.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.torch_ranks.hybrid_model import LR, draw_batches, loss_of, make_model, repeat

#: Batches that wait for the dense worker, and threads that look them up: Persia's defaults.
_FORWARD_BUFFER, _LOOKUP_THREADS = 10, 10


def load(settings: dict[str, Any]) -> None:
    """Sends the batches of all rounds: ids to the embedding worker, labels to the dense worker."""
    from persia.ctx import DataCtx
    from persia.embedding.data import IDTypeFeatureWithSingleID, Label, PersiaBatch

    prepared = [
        (
            [(name, ids.numpy().astype(np.uint64)) for name, ids in batch.ids.items()],
            batch.labels.numpy(),
        )
        for batch in draw_batches(settings, 0)
    ]
    with DataCtx() as context:
        for features, labels in repeat(prepared, _num_steps(settings)):
            context.send_data(
                PersiaBatch(
                    [IDTypeFeatureWithSingleID(name, ids) for name, ids in features],
                    labels=[Label(labels)],
                    requires_grad=True,
                )
            )
        sys.stdin.read()  # The job closes it in the end: the embedding worker asks its peers until then.


def train(settings: dict[str, Any]) -> None:
    """Trains the rounds of ``settings``."""
    from persia.ctx import TrainCtx
    from persia.data import DataLoader, StreamingDataset
    from persia.embedding.optim import Adagrad

    torch.set_num_threads(1)
    model = make_model(settings)

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, _dense: list[torch.Tensor], embeddings: list[torch.Tensor]) -> list[torch.Tensor]:
            return [each.float() for each in embeddings]  # They come in float16.

    with TrainCtx(
        embedding_optimizer=Adagrad(lr=LR, vectorwise_shared=True),
        dense_optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        model=Dense(),
        mixed_precision=False,
    ) as context:
        loader = DataLoader(
            StreamingDataset(_FORWARD_BUFFER),
            forward_buffer_size=_FORWARD_BUFFER,
            num_workers=_LOOKUP_THREADS,
            timeout_ms=1000 * settings["timeout_s"],
            embedding_staleness=settings["staleness"] or None,
        )
        batches = iter(loader)
        times = []
        for _ in range(settings["rounds"] + 1):
            began = time.perf_counter()
            for _ in range(settings["steps"]):
                embeddings, labels = context.forward(next(batches))
                context.backward(loss_of(model, embeddings, labels[0], compute_ms=settings["compute_ms"]))
            times.append(time.perf_counter() - began)
        rows = sum(context.get_embedding_size())
        # The first round warms up.
        print(json.dumps({"rounds_s": times[1:], "keys": 0, "rows": rows}), flush=True)


def _num_steps(settings: dict[str, Any]) -> int:
    return (settings["rounds"] + 1) * settings["steps"]


if __name__ == "__main__":
    {"loader": load, "dense": train}[sys.argv[1]](json.loads(sys.argv[2]))
