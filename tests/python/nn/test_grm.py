# SPDX-License-Identifier: Apache-2.0
"""The generative recommendation model: what a logit depends on, its losses, and sums over any division of a batch.

A sample is a user's context, history of events, and targets: the items to score. Each is a token. A target has one
logit per label ("click", "buy").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.data import BatchReader, ParquetFolder, SampleBatch
from headway.embedding import LOCAL, Adam
from headway.nn import GRM, GRMConfig, MMoE, grm, keep_mask, token_encoder, token_keys
from headway.nn.row_padding import padded_rows
from parquet_samples import SCHEMA, make_rows, write_folder
from torch.nn import functional

#: ``given``: the model learns the probability of "buy" for clicked targets, and multiplies it by that of "click".
CONFIG = GRMConfig(
    dim=16, num_layers=2, num_heads=2, head_dim=8, max_length=16, embedding_dim=4, given={"buy": "click"}
)


def make_model(config: GRMConfig = CONFIG, **options: Any) -> GRM:
    torch.manual_seed(0)
    return GRM(config, SCHEMA, process_group=LOCAL, **options)


@pytest.fixture
def batches(tmp_path: Path) -> list[SampleBatch]:
    """Four batches of 10 samples, the rows of a file in their order."""
    folder = ParquetFolder(write_folder(tmp_path, make_rows(40)), SCHEMA)
    return [step.batches[0] for step in BatchReader(folder, global_batch=10, order="time")]


def test_tokens_are_context_history_and_targets(batches: list[SampleBatch]) -> None:
    batch = batches[0]
    assert make_model().encoder(batch).sequences.times is None, "nothing reads them"
    tokens = make_model(replace(CONFIG, num_time_buckets=4)).encoder(batch)
    lengths = 1 + batch.history_lengths + batch.target_lengths
    assert tokens.sequences.offsets.tolist() == [0, *lengths.cumsum(0).tolist()]
    assert tokens.sequences.max_length == int(lengths.max())
    ends = tokens.sequences.offsets[1:].tolist()
    counts = batch.target_lengths.tolist()
    assert tokens.targets.tolist() == [end - n + i for end, n in zip(ends, counts, strict=True) for i in range(n)]
    assert tokens.sequences.times is not None and batch.times is not None
    begins = tokens.sequences.offsets[:-1].tolist()
    event, histories = 0, batch.history_lengths.tolist()
    for begin, end in zip(begins, ends, strict=True):
        times = tokens.sequences.times[begin:end].tolist()
        expected = batch.times[event : event + end - begin - 1].tolist()
        # The context token has the time of the first event of the history.
        assert times == [expected[0] if histories.pop(0) > 0 else 0, *expected]
        event += end - begin - 1


def test_rows_of_no_sample_change_nothing(batches: list[SampleBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of rows are rounded up on GPUs."""

    def losses_and_gradients() -> list[torch.Tensor]:
        model = make_model(replace(CONFIG, dropout=0.3, num_time_buckets=4))
        losses = [loss for batch in batches for loss in model(batch, seed=1, step=2).values()]
        torch.stack(losses).sum().backward()
        return [*losses, *(each.grad for each in model.parameters() if each.grad is not None)]

    exact = losses_and_gradients()
    for module in (token_encoder, grm):
        monkeypatch.setattr(module, "padded_rows", lambda num_rows, device: num_rows + 5)
    for one, other in zip(exact, losses_and_gradients(), strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_of_rows_are_rounded_up() -> None:
    on_gpu = torch.device("cuda")
    assert [padded_rows(n, on_gpu) for n in (0, 1, 64, 65, 7937, 8100, 8192, 8193, 76_000)] == [
        0, 64, 64, 128, 8192, 8192, 8192, 8704, 76_288
    ]  # fmt: skip
    assert padded_rows(65, torch.device("cpu")) == 65


def change_all(batch: SampleBatch, name: str) -> SampleBatch:
    """Flips one label of all targets."""
    return replace(batch, labels=batch.labels | {name: 1 - batch.labels[name]})


def test_no_logit_depends_on_a_label(batches: list[SampleBatch]) -> None:
    model = make_model().eval()
    for batch in batches:
        for name in SCHEMA.labels:
            assert torch.equal(model.logits(change_all(batch, name)), model.logits(batch))


def with_relative_biases() -> GRM:
    """A model whose attention looks at positions and times."""
    model = make_model(replace(CONFIG, num_time_buckets=128, position_bias=True)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("time_weights", "position_weights")):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("make", [lambda: make_model().eval(), with_relative_biases])
def test_a_target_does_not_see_other_targets(batches: list[SampleBatch], make: Callable[[], GRM]) -> None:
    model, batch = make(), batches[0]
    first_of_samples = (batch.target_lengths.cumsum(0) - batch.target_lengths).tolist()
    event_offsets = (batch.history_lengths + batch.target_lengths).cumsum(0)
    last_events = event_offsets - 1  # The last target of each sample gets another item.
    items = batch.events["item"].clone()
    items[last_events] += 1000
    changed = replace(batch, events=batch.events | {"item": items})
    before, after = model.logits(batch), model.logits(changed)
    for first, count in zip(first_of_samples, batch.target_lengths.tolist(), strict=True):
        torch.testing.assert_close(
            after[first : first + count - 1], before[first : first + count - 1], rtol=0, atol=1e-6
        )
        assert not torch.allclose(after[first + count - 1], before[first + count - 1], rtol=0, atol=1e-6)


def test_a_target_does_not_see_the_times_of_other_targets(batches: list[SampleBatch]) -> None:
    model, batch = with_relative_biases(), batches[0]
    assert batch.times is not None
    ends, counts = batch.event_lengths.cumsum(0).tolist(), batch.target_lengths.tolist()
    before = torch.split(model.logits(batch), counts)
    for place in (0, -1):  # The times of all targets but the first, or the last, are those of years later.
        times = batch.times.clone()
        for end, count in zip(ends, counts, strict=True):
            others = [end - count + index for index in range(count) if index != place % count]
            times[others] += 10**8
        after = torch.split(model.logits(replace(batch, times=times)), counts)
        for old, new in zip(before, after, strict=True):
            assert torch.equal(new[place], old[place])
    assert not all(torch.equal(old, new) for old, new in zip(before, after, strict=True)), "times count"


def test_losses_are_those_of_the_probabilities(batches: list[SampleBatch]) -> None:
    model, batch = make_model(), batches[0]
    click, buy = model.logits(batch).double().unbind(1)
    expected = {
        "click": functional.binary_cross_entropy(click.sigmoid(), batch.labels["click"].double(), reduction="sum"),
        "buy": functional.binary_cross_entropy(
            click.sigmoid() * buy.sigmoid(), batch.labels["buy"].double(), reduction="sum"
        ),
    }
    for name, loss in model(batch).items():
        torch.testing.assert_close(loss.double(), expected[name], rtol=1e-6, atol=0)
    assert model.count_terms(batch) == {"click": batch.num_targets, "buy": batch.num_targets}


def test_small_probabilities_do_not_underflow() -> None:
    from headway.nn.grm import log_product

    far = torch.tensor([-200.0, 200.0, -60.0], requires_grad=True)
    yes, no = log_product([far, far])
    assert torch.isfinite(yes).all() and torch.isfinite(no).all()
    torch.testing.assert_close(yes, torch.tensor([-400.0, 0.0, -120.0]))
    (yes.sum() + no.sum()).backward()
    assert torch.isfinite(far.grad).all()


def test_sums_over_micro_batches_are_those_of_the_batch(tmp_path: Path) -> None:
    """In double precision, with dropout: a token's mask does not depend on its batch."""
    folder = ParquetFolder(write_folder(tmp_path, make_rows(30)), SCHEMA)
    model = make_model(replace(CONFIG, dropout=0.5)).double()
    gradients = []
    for parts in (1, 3, 5):
        (step,) = BatchReader(folder, global_batch=30, micro_batches=parts)
        model.zero_grad()
        model.encoder.tables.optimizer.zero_grad()
        losses = []
        for batch in step.batches:
            loss = model(batch, seed=3, step=7)["click"]
            loss.backward()
            losses.append(loss.detach())
        gradients.append([torch.stack(losses).sum()] + [each.grad.clone() for each in model.parameters()])
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_a_model_trains_under_autocast(batches: list[SampleBatch]) -> None:
    model, batch = make_model(replace(CONFIG, wide=True)), batches[0]
    plain = model(batch)["click"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model(batch)
    assert losses["click"].dtype == torch.float32
    torch.testing.assert_close(losses["click"], plain, rtol=0.05, atol=0)
    losses["click"].backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)


def test_an_empty_batch_has_no_loss_and_all_gradients(tmp_path: Path) -> None:
    folder = ParquetFolder(write_folder(tmp_path, make_rows(1)), SCHEMA)
    reader = BatchReader(folder, global_batch=1, micro_batches=2)
    (step,) = reader
    empty = next(batch for batch in step.batches if batch.num_samples == 0)
    model = make_model()
    losses = model(empty)
    sum(losses.values(), torch.zeros(())).backward()
    assert [loss.item() for loss in losses.values()] == [0, 0]
    assert all(each.grad is not None and not each.grad.any() for each in model.parameters())


def test_dropout_depends_on_its_key_alone() -> None:
    """A token's key is a hash of seed, step, its sample's id and its position, not of its place in the batch."""
    samples, positions = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 0, 1, 2])
    keys = token_keys(torch.tensor([7, 9]), samples, positions, seed=1, step=5)
    swapped = token_keys(torch.tensor([9, 7]), 1 - samples, positions, seed=1, step=5)
    assert torch.equal(keys, swapped) and len(set(keys.tolist())) == 5
    assert not torch.equal(keys, token_keys(torch.tensor([7, 9]), samples, positions, seed=1, step=6))
    assert not torch.equal(keys, token_keys(torch.tensor([7, 9]), samples, positions, seed=2, step=5))
    many = token_keys(torch.arange(2000), torch.arange(2000), torch.zeros(2000, dtype=torch.int64), seed=0, step=0)
    for dropout in (0.1, 0.5, 0.9):
        kept = [keep_mask(many, 64, layer=layer, dropout=dropout).float() for layer in (0, 1)]
        for mask in kept:
            assert abs(float(mask.mean()) - (1 - dropout)) < 0.005
            assert float((mask.mean(0) - (1 - dropout)).abs().max()) < 0.06
        both = float((kept[0] * kept[1]).mean())
        assert abs(both - (1 - dropout) ** 2) < 0.005, "layers are independent"


def test_a_wide_model_adds_a_linear_function_of_the_target(batches: list[SampleBatch]) -> None:
    batch, wide = batches[0], make_model(replace(CONFIG, wide=True)).eval()
    assert wide.wide is not None
    embeddings = wide.encoder(batch).target_embeddings
    assert embeddings.shape == (batch.num_targets, 2 * CONFIG.embedding_dim)
    of_both = wide.logits(batch)
    expected = of_both - embeddings @ wide.wide.weight.T
    wide.wide = None  # Without the linear part the model gives the logits of the stack alone.
    torch.testing.assert_close(wide.logits(batch), expected)


def test_a_deep_part_sees_the_target_its_context_and_the_mean_of_its_history(batches: list[SampleBatch]) -> None:
    batch, model = batches[0], make_model(replace(CONFIG, deep=(8, 4))).eval()
    assert model.deep is not None and not model.heads.any(), "the stack begins without a say"
    tokens = model.encoder(batch)
    found = model.encoder.tables(model.encoder._features(batch))
    expected, event, target = [], 0, 0
    for sample in range(batch.num_samples):
        num_history, num_targets = int(batch.history_lengths[sample]), int(batch.target_lengths[sample])
        history = found[SCHEMA.events[0]][event : event + num_history]
        mean = history.mean(0) if num_history else torch.zeros(CONFIG.embedding_dim)
        of_sample = torch.cat([*(found[name][sample] for name in SCHEMA.context), mean])
        for _ in range(num_targets):
            expected.append(torch.cat([tokens.target_embeddings[target], of_sample]))
            target += 1
        event += num_history + num_targets
    assert tokens.deep_inputs is not None
    torch.testing.assert_close(tokens.deep_inputs, torch.stack(expected))
    # Only the deep part tells targets apart at first.
    first, second, last = (each for each in model.deep.layers if isinstance(each, torch.nn.Linear))
    of_deep = last(torch.relu(second(torch.relu(first(tokens.deep_inputs))))) + model.deep.linear(tokens.deep_inputs)
    torch.testing.assert_close(model.logits(batch), of_deep + model.head_bias)


def test_experts_beyond_the_top_have_no_weight() -> None:
    torch.manual_seed(0)
    mixture = MMoE(4, num_tasks=2, num_experts=3, top_k=1, hidden=8)
    x = torch.randn(5, 4)
    best = mixture.gates(x).view(5, 2, 3).argmax(2)
    outputs = torch.stack(
        [
            functional.silu(x @ mixture.hidden_weight[i] + mixture.hidden_bias[i]) @ mixture.output_weight[i]
            + mixture.output_bias[i]
            for i in range(3)
        ]
    )
    expected = torch.stack([outputs[best[:, task], torch.arange(5)] for task in range(2)], dim=1)
    torch.testing.assert_close(mixture(x), expected)
    with pytest.raises(ValueError, match="top_k must be from 1 to the 3 experts"):
        MMoE(4, num_tasks=1, num_experts=3, top_k=4, hidden=8)


def test_presets_have_the_published_operations() -> None:
    for name, gigaflops in (("grm_4g", 3.8), ("grm_110g", 111.0)):  # FLOPs of the projections to u, v, q, k.
        config = GRMConfig.preset(name)
        flops = 8 * config.dim**2 * config.num_layers * 600  # From dim to 4 dim columns, for 600 tokens.
        assert flops / 1e9 == pytest.approx(gigaflops, rel=0.01)
        assert sum(config.layer().projection_widths) == 4 * config.dim
    with pytest.raises(ValueError, match="there is no preset grm_1g"):
        GRMConfig.preset("grm_1g")


def test_wrong_settings_are_refused(batches: list[SampleBatch]) -> None:
    with pytest.raises(ValueError, match="given names like"):
        make_model(replace(CONFIG, given={"buy": "like"}))
    with pytest.raises(ValueError, match="given has labels in a circle: click -> buy -> click"):
        make_model(replace(CONFIG, given={"buy": "click", "click": "buy"}))
    with pytest.raises(ValueError, match=r"a sample has \d+ tokens, and max_length is 3"):
        make_model(replace(CONFIG, max_length=3))(batches[0])


def test_a_model_learns_a_rule_of_the_history(tmp_path: Path) -> None:
    """A target is clicked if its item is in the history: no rate of items or users tells that."""
    rows = make_rows(400)
    for row in range(400):
        known = set(rows["item"][row])
        rows["click"][row] = [int(item in known) for item in rows["target_item"][row]]
        rows["buy"][row] = [0] * len(rows["click"][row])
    folder = ParquetFolder(write_folder(tmp_path, rows, row_group=50), SCHEMA)
    model = make_model(replace(CONFIG, dim=32, head_dim=16, embedding_dim=16), optimizer=Adam(lr=0.02))
    dense = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for step in BatchReader(folder, global_batch=50, epochs=25):
        (batch,) = step.batches
        loss = model(batch)["click"] / batch.num_targets
        dense.zero_grad()
        model.encoder.tables.optimizer.zero_grad()
        loss.backward()
        dense.step()
        model.encoder.tables.optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-8:]) / 8 < 0.5 * sum(losses[:8]) / 8
