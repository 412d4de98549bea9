# SPDX-License-Identifier: Apache-2.0
"""HSTUStack: cached history, the final norm, and checkpoints of the authors' code.

"research" and "production" are the two variants in the code of the authors of HSTU. ``extend()`` computes new tokens of
sequences whose earlier keys and values are cached. ``renamed_state()`` gives the authors' weights our names.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from headway.nn import HSTUConfig, HSTUStack, HSTUStackConfig, Sequences, next_times, renamed_state
from jagged_batches import LENGTHS, batch_of, jagged, offsets_of, padded, tokens
from padded_hstu import padded_layer
from torch import Tensor

SIZES: dict[str, Any] = {"dim": 6, "max_length": 9, "num_heads": 2, "qk_dim": 3, "v_dim": 4}


def stack_of(layer: HSTUConfig, **changes: Any) -> HSTUStack:
    torch.manual_seed(4)
    config = HSTUStackConfig(**{"layer": layer, "num_layers": 3} | changes)
    return HSTUStack(config).to(torch.float64).eval()


def part_of(sequences: Sequences, x: Tensor, begins: list[int], ends: list[int]) -> tuple[Sequences, Tensor, Tensor]:
    """Cuts out tokens ``begins[b]`` to ``ends[b]`` of each sequence; returns them, their x, and their batch indices."""
    starts = sequences.offsets[:-1].tolist()
    indices = torch.tensor(
        [s + i for s, begin, end in zip(starts, begins, ends, strict=True) for i in range(begin, end)],
        dtype=torch.int64,
    )
    assert sequences.times is not None and sequences.query_times is not None
    part = replace(
        sequences,
        offsets=offsets_of([end - begin for begin, end in zip(begins, ends, strict=True)]),
        times=sequences.times[indices],
        query_times=sequences.query_times[indices],
    )
    return part, x[indices], indices


@torch.no_grad()
def test_tokens_that_come_one_part_after_the_other_give_what_all_give_together() -> None:
    stack = stack_of(HSTUConfig.research(**SIZES, window=4))
    sequences, x = batch_of(), tokens(6)
    expected = stack(x, sequences)

    out, caches = torch.zeros_like(expected), None
    # Ends of each part, by sequence. A part goes from one row to the next.
    cuts = [[0, 0, 0, 0], [3, 0, 1, 2], [3, 0, 1, 6], LENGTHS]
    for begins, ends in pairwise(cuts):
        part, x_of_part, indices = part_of(sequences, x, begins, ends)
        out[indices], caches = stack.extend(x_of_part, part, caches)
    torch.testing.assert_close(out, expected)
    assert caches is not None and len(caches) == 3
    assert [cache.keys.shape for cache in caches] == [(13, 2, 3)] * 3


@torch.no_grad()
def test_targets_behind_a_cached_history_give_what_all_give_together() -> None:
    config = HSTUConfig.production(**SIZES, scale=0.25, window=2, full_attention_tail=1)
    stack = stack_of(config)
    context = torch.tensor([2, 0, 0, 1], dtype=torch.int32)
    sequences = replace(batch_of(), num_contextual=context)
    targets = torch.tensor([2, 0, 1, 3], dtype=torch.int32)
    x = tokens(6)
    expected = stack(x, replace(sequences, num_targets=targets))

    history_ends = [length - count for length, count in zip(LENGTHS, targets.tolist(), strict=True)]
    history, x_of_history, _ = part_of(sequences, x, [0] * 4, history_ends)
    new, x_of_new, indices = part_of(sequences, x, history_ends, LENGTHS)
    _, caches = stack.extend(x_of_history, history)
    for _ in range(2):  # The cache serves any number of requests.
        out, _ = stack.extend(x_of_new, replace(new, num_targets=targets), caches)
        torch.testing.assert_close(out, expected[indices])
    with pytest.raises(ValueError, match="must be targets"):
        stack.extend(x_of_new, new, caches)


@torch.no_grad()
def test_a_cache_is_refused_where_new_tokens_would_change_cached_ones() -> None:
    sequences, x = batch_of(), tokens(6)
    for changes in ({"scale": "length"}, {"causal": False}):
        stack = stack_of(HSTUConfig(**SIZES, **changes))
        _, caches = stack.extend(x, sequences)
        with pytest.raises(ValueError, match="new tokens change cached ones"):
            stack.extend(x, sequences, caches)


def test_the_last_norm_is_that_of_its_name() -> None:
    sequences, x = batch_of(), tokens(6)
    layer = HSTUConfig.research(**SIZES)
    plain = stack_of(layer, final_norm=None)(x, sequences)
    l2 = plain / plain.norm(dim=1, keepdim=True)
    torch.testing.assert_close(stack_of(layer, final_norm="l2")(x, sequences), l2)
    rms = plain / (plain.square().mean(1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(stack_of(layer, final_norm="rms")(x, sequences), rms)
    centred = plain - plain.mean(1, keepdim=True)
    centred = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(stack_of(layer, final_norm="layer")(x, sequences), centred)
    with pytest.raises(ValueError, match="final_norm must be one of"):
        HSTUStackConfig(layer=layer, num_layers=1, final_norm="batch")  # type: ignore[arg-type]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64) * 0.3


def test_checkpoints_of_the_research_code_load() -> None:
    torch.manual_seed(6)
    config = HSTUConfig.research(**SIZES)
    state = {"_embedding_module._item_emb.weight": random(20, 6), "_attn_mask": torch.ones(9, 9, dtype=torch.bool)}
    for i in range(2):
        of_layer = f"_hstu._attention_layers.{i}."
        state[f"{of_layer}_rel_attn_bias._ts_w"] = random(129)
        state[f"{of_layer}_rel_attn_bias._pos_w"] = random(17)
        state[f"{of_layer}_uvqk"] = random(6, 28)
        state[f"{of_layer}_o.weight"] = random(6, 8)
        state[f"{of_layer}_o.bias"] = random(6)
    stack = stack_of(config, num_layers=2, final_norm="l2")
    stack.load_state_dict(renamed_state(state))

    # The padded code gives the position after the last token time 0, unless it holds the time of the requested item.
    sequences, x = batch_of(), tokens(6)
    assert sequences.times is not None
    times = padded(sequences.times, LENGTHS)
    asked = torch.tensor([int(times[b, length - 1]) + 60 if length else 0 for b, length in enumerate(LENGTHS)])
    with_asked = torch.cat([times, torch.zeros(len(LENGTHS), 1, dtype=torch.int64)], dim=1)
    with_asked[torch.arange(len(LENGTHS)), LENGTHS] = asked
    expected = padded(x, LENGTHS)
    for i in range(2):
        of_layer = f"_hstu._attention_layers.{i}."
        weights = {
            "uvqk_weight": state[f"{of_layer}_uvqk"],
            "output_weight": state[f"{of_layer}_o.weight"].t(),
            "output_bias": state[f"{of_layer}_o.bias"],
            "bias.position_weights": state[f"{of_layer}_rel_attn_bias._pos_w"],
            "bias.time_weights": state[f"{of_layer}_rel_attn_bias._ts_w"],
        }
        expected = padded_layer(config, weights, expected, LENGTHS, times, with_asked[:, 1:])
    expected = jagged(torch.nn.functional.normalize(expected, dim=-1), LENGTHS)
    sequences = replace(sequences, query_times=next_times(sequences.times, sequences.offsets, asked))
    torch.testing.assert_close(stack(x, sequences), expected)


def test_checkpoints_of_the_production_code_load() -> None:
    shapes = {
        "_uvqk_weight": (6, 28),
        "_uvqk_beta": (28,),
        "_input_norm_weight": (6,),
        "_input_norm_bias": (6,),
        "_output_weight": (24, 6),
        "_output_norm_weight": (8,),
        "_output_norm_bias": (8,),
    }
    state = {
        f"module._hstu_transducer._stu_module._stu_layers.{i}.{name}": random(*shape)
        for i in range(3)
        for name, shape in shapes.items()
    }
    stack = stack_of(HSTUConfig.production(**SIZES))
    stack.load_state_dict(renamed_state(state))
    loaded = stack.state_dict()
    for i in range(3):
        prefix = f"module._hstu_transducer._stu_module._stu_layers.{i}."
        assert torch.equal(loaded[f"layers.{i}.uvqk_bias"], state[f"{prefix}_uvqk_beta"])
        assert torch.equal(loaded[f"layers.{i}.output_norm_weight"], state[f"{prefix}_output_norm_weight"])


@pytest.mark.parametrize("layer", [HSTUConfig.research(**SIZES), HSTUConfig.production(**SIZES)])
def test_a_stack_of_the_meta_device_loads_what_another_saved(layer: HSTUConfig) -> None:
    stack, sequences, x = stack_of(layer), batch_of(), tokens(6)
    with torch.device("meta"):
        empty = HSTUStack(stack.config)
    empty.to(torch.float64).to_empty(device="cpu").load_state_dict(stack.state_dict())
    torch.testing.assert_close(empty.eval()(x, sequences), stack(x, sequences), rtol=0, atol=0)


@pytest.mark.parametrize("attention", ["kernel", "reference"])
def test_a_stack_without_memory_for_its_bounds_is_refused(attention: Any) -> None:
    stack = stack_of(HSTUConfig.research(**SIZES, attention=attention))
    with torch.device("meta"):
        empty = HSTUStack(stack.config)
    empty.load_state_dict(stack.state_dict(), assign=True)  # Time bounds are not part of the state.
    with pytest.raises(ValueError, match=r"bounds of time buckets are on meta, and x on cpu: .* to_empty\(\)"):
        empty(tokens(6), batch_of())


@pytest.mark.parametrize("layer", [HSTUConfig.research(**SIZES), HSTUConfig.production(**SIZES)])
def test_a_stack_of_the_meta_device_can_draw_its_weights_by_itself(layer: HSTUConfig) -> None:
    stack = stack_of(layer)
    with torch.device("meta"):
        empty = HSTUStack(stack.config).to_empty(device="cpu")
    torch.manual_seed(4)
    for each in empty.layers:  # The same order as in the construction of a layer.
        each.bias.reset_parameters()
        each.reset_parameters()
    for name, value in empty.to(torch.float64).state_dict().items():
        assert torch.equal(value, stack.state_dict()[name]), name


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="no weight of an HSTU layer"):
        renamed_state({"attention_layers.0.in_proj_weight": random(2)})
    with pytest.raises(ValueError, match=r"_attention_layers.0._k: HSTU layers have no such weight"):
        renamed_state({"_attention_layers.0._k": random(2)})


def test_a_checkpoint_of_two_stacks_is_refused_and_not_mixed() -> None:
    state = {f"{of_stack}._attention_layers.0._uvqk": random(6, 28) for of_stack in ("_users", "_items")}
    message = r"_users._attention_layers.0._uvqk and _items._attention_layers.0._uvqk are both layers.0.uvqk_weight"
    with pytest.raises(ValueError, match=message):
        renamed_state(state)
    renamed_state({name: each for name, each in state.items() if name.startswith("_items.")})
