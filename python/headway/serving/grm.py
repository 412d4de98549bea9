# SPDX-License-Identifier: Apache-2.0
"""A trained ``GRM`` as a model for serving.

Idea: a request has users with their context and history, and the items to score for each. ``TokenEncoder`` looks
history and targets up together. A server looks them up apart, as a history is sent once for all items, so the dense
part places their embeddings as tokens itself.

Example: two users with histories of 2 and 1 events, 1 and 2 items, and no context, in a bucket of 4 tokens and 4 items.
The rows are h0 h1 t0 | h2 t1 t2, then the padding: one row of history and one item.

Invariants: tokens of padding follow all others and belong to no sample, so attention leaves them out.

Shapes: U users, T events of histories, N items, C contextual features, E columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from headway.checkpoints import load_weights
from headway.data.schema import TARGET
from headway.embedding import LOCAL
from headway.embedding.config import NoOptimizer
from headway.nn import GRM
from headway.nn.sequences import Sequences, offsets_of, sequence_of_tokens
from headway.nn.token_encoder import join_deep_inputs
from headway.serving.export import export
from headway.serving.package import Bucket, Manifest, PackageError, ServedFeature
from headway.training.checkpoints import Checkpoints
from headway.training.config import TrainingConfig
from headway.training.train_step import DType

HISTORY = "history"  #: Name of the sequence of events.


class DenseGRM(nn.Module):
    """The part of a ``GRM`` behind its lookups, for ``headway.serving.export()``.

    Its outputs are the probabilities of the labels.

    Args:
        model: without time buckets.

    Raises:
        PackageError: the model needs times of events.
    """

    def __init__(self, model: GRM) -> None:
        super().__init__()
        if model.config.num_time_buckets > 0:
            raise PackageError("a GRM with time buckets cannot be exported: requests have no times")
        self.model = model

    @property
    def features(self) -> list[ServedFeature]:
        """The features of requests: context and history of users, and their items as ``target_NAME``."""
        schema = self.model.schema
        table_of = {each.name: each.table for each in self.model.encoder.tables.features}
        return [
            *(ServedFeature(name=name, table=table_of[name], axis="user", is_single=True) for name in schema.context),
            *(
                ServedFeature(name=name, table=table_of[name], axis="user", pooling=None, sequence=HISTORY)
                for name in (*schema.events, *schema.actions)
            ),
            *(ServedFeature(name=TARGET + name, table=table_of[name], is_single=True) for name in schema.events),
        ]

    @property
    def longest(self) -> int:
        """Most events and items of a user, together."""
        return self.model.config.max_length - len(self.model.schema.context)

    def forward(
        self,
        embeddings: Mapping[str, Tensor],
        lengths: Mapping[str, Tensor],
        dense: Mapping[str, Tensor],
        items: Tensor,
    ) -> dict[str, Tensor]:
        """Returns the probability of each label, (N,) float32."""
        model, schema = self.model, self.model.schema
        encoder, num_context = model.encoder, len(schema.context)
        history = torch.cat([embeddings[name] for name in schema.events], dim=1)
        targets = torch.cat([embeddings[TARGET + name] for name in schema.events], dim=1)
        num_users, num_items, num_events = len(items), len(targets), len(history)
        events_before, items_before = offsets_of(lengths[HISTORY]), offsets_of(items)
        # Rows of padding have the user number U. ``after`` is then the number of all rows before them.
        of_event, of_item = sequence_of_tokens(events_before, num_events), sequence_of_tokens(items_before, num_items)
        after = torch.cat([events_before[1:], events_before.new_full((1,), num_events)])
        context_of = (torch.arange(num_users + 1, device=items.device) + 1).clamp(max=num_users) * num_context
        place_of_event = torch.arange(num_events, device=items.device) + items_before[of_event] + context_of[of_event]
        place_of_item = torch.arange(num_items, device=items.device) + after[of_item] + context_of[of_item]

        of_events = self._project(history, [embeddings[name] for name in schema.actions])  # 16 bits under autocast.
        x = of_events.new_zeros(num_context * num_users + num_events + num_items, model.config.dim)
        x = x.index_copy(0, place_of_event, of_events)
        x = x.index_copy(0, place_of_item, self._project(targets, []).to(x.dtype))
        if num_context > 0:
            rows = torch.stack([encoder.context[f"of_{name}"](embeddings[name]) for name in schema.context], dim=1)
            first = context_of[:-1] - num_context + events_before[:-1] + items_before[:-1]
            places = first[:, None] + torch.arange(num_context, device=items.device)
            x = x.index_copy(0, places.flatten(), rows.flatten(0, 1).to(x.dtype))
        sequences = Sequences(
            offsets=offsets_of(lengths[HISTORY] + items + num_context),
            max_length=model.config.max_length,
            num_contextual=torch.full_like(items, num_context, dtype=torch.int32),
            num_targets=items.to(torch.int32),
        )
        encoded = model.stack(x, sequences).index_select(0, place_of_item)
        deep_inputs = None
        if model.deep is not None:
            first = embeddings[schema.events[0]]
            sums = first.new_zeros(num_users + 1, first.shape[1]).index_add(0, of_event, first)
            mean = sums[:num_users] / lengths[HISTORY].clamp(min=1)[:, None]
            context = [embeddings[name] for name in schema.context]
            deep_inputs = join_deep_inputs(targets, context, mean, of_item.clamp(max=num_users - 1))
        return {
            name: yes.exp()
            for name, (yes, _) in model.log_probabilities(model.score(encoded, targets, deep_inputs)).items()
        }

    def _project(self, of_events: Tensor, of_actions: Sequence[Tensor]) -> Tensor:
        """Projects events and their actions; targets have none."""
        encoder = self.model.encoder
        if encoder.actions is None:
            return encoder.project(of_events, None)
        width = encoder.actions.in_features
        actions = torch.cat(list(of_actions), dim=1) if of_actions else of_events.new_zeros(len(of_events), width)
        return encoder.project(of_events, actions)


def export_grm(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    buckets: Sequence[Bucket],
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: DType = "float32",
    version: str = "",
) -> Manifest:
    """Writes a checkpoint of ``headway train`` as a package.

    Args:
        checkpoint: one of ``OUT/checkpoints/``, or OUT: its newest.
        folder: new or empty.
        buckets, device, dtype: see ``export()``.
        version: empty: the name of the checkpoint.

    Raises:
        TrainingCheckpointError: there is no checkpoint, or it is not complete.
        PackageError: see ``export()``.
    """
    path = Path(checkpoint)
    if (path / "checkpoints").is_dir():
        path = Checkpoints(path / "checkpoints", keep=0, group=None).latest() or path
    config = TrainingConfig.of(Checkpoints.manifest(path).config)
    model = GRM(
        config.model.grm(), config.data.schema(), optimizer=NoOptimizer(), tables=config.model.tables,
        seed=config.run.seed, process_group=LOCAL,
    )  # fmt: skip
    tables = model.encoder.tables
    load_weights(path, Checkpoints.load_dense(path)["model"], model, [tables])
    tables.load(path / "tables_0", embeddings_only=True)
    dense = DenseGRM(model).to(device)
    return export(
        folder, dense, tables, features=dense.features, buckets=buckets, longest=dense.longest,
        device=device, dtype=dtype, version=version or path.resolve().name,
    )  # fmt: skip
