# SPDX-License-Identifier: Apache-2.0
"""HSTULayer: its variants against padded ones, gradients, saved activations, types and compilation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cuda_ranks import NEEDS_GPU
from headway.nn import HSTUConfig, HSTULayer, Sequences
from jagged_batches import LENGTHS, batch_of, jagged, layer_of, offsets_of, padded, targets_of, tokens
from padded_hstu import padded_layer
from torch import Tensor

SIZES: dict[str, Any] = {"dim": 6, "max_length": 9, "num_heads": 2, "qk_dim": 3, "v_dim": 4}
#: "research" and "production" are the two variants in the code of the authors of HSTU.
DEFINITIONS = {
    "research": HSTUConfig.research(**SIZES),
    "production": HSTUConfig.production(**SIZES),
    "norm of the gated": HSTUConfig(**SIZES, gate="gate_then_norm", norm="rms", affine=True, scale="length"),
    "scaled with its bias": HSTUConfig.research(**SIZES, alpha=SIZES["qk_dim"] ** -0.5, scale=1.0),
    "three parts, normed": HSTUConfig.research(**SIZES, gate="concat_norm", norm="rms"),
}
#: Activations that the backward pass computes again instead of keeping them, from none to all.
RECOMPUTE = ("none", "norm_and_gate", "projection", "all")


def gradients(out: Tensor, layer: HSTULayer, x: Tensor) -> dict[str, Tensor]:
    """Returns gradients of a weighted sum of the output; all weights differ."""
    factors = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device)
    loss = (out.double() * factors.view_as(out)).sum()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return dict(zip(("x", *names), torch.autograd.grad(loss, [x, *parameters]), strict=True))


def assert_all_close(actual: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name in actual:
        torch.testing.assert_close(
            actual[name], expected[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@pytest.mark.parametrize("attention", ["kernel", "reference"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_jagged_batch_gives_what_a_padded_one_gives(name: str, attention: Any) -> None:
    config = replace(DEFINITIONS[name], attention=attention)
    layer, sequences = layer_of(config), batch_of()
    x = tokens(config.dim).requires_grad_()
    out = layer(x, sequences)

    assert sequences.times is not None and sequences.query_times is not None
    expected = padded_layer(
        config,
        dict(layer.named_parameters()),
        padded(x, LENGTHS),
        LENGTHS,
        padded(sequences.times, LENGTHS),
        padded(sequences.query_times, LENGTHS),
    )
    expected = jagged(expected, LENGTHS)
    torch.testing.assert_close(out, expected)
    assert_all_close(gradients(out, layer, x), gradients(expected, layer, x))


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_gradients_are_those_of_differences(name: str, recompute: Any) -> None:
    config = replace(DEFINITIONS[name], recompute=recompute, num_time_buckets=0)
    layer = layer_of(config)
    sequences = Sequences(offsets=offsets_of([2, 1]), max_length=2)
    parameters = dict(layer.named_parameters())

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (x, sequences))

    inputs = (tokens(config.dim, num=3).requires_grad_(), *(p.detach().requires_grad_() for p in parameters.values()))
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("attention", ["kernel", "reference"])
@pytest.mark.parametrize("recompute", RECOMPUTE[1:])
def test_recomputation_changes_no_gradient_with_dropout_masks_and_time(recompute: Any, attention: Any) -> None:
    config = replace(
        DEFINITIONS["production"], dropout=0.4, window=3, num_time_buckets=40, position_bias=True, attention=attention
    )
    sequences = targets_of(batch_of(), [2, 0, 1, 3])
    sequences = replace(sequences, num_contextual=torch.tensor([1, 0, 0, 2], dtype=torch.int32))
    found = []
    for each in ("none", recompute):
        layer = layer_of(replace(config, recompute=each))
        x = tokens(config.dim).requires_grad_()
        torch.manual_seed(3)
        out = layer(x, sequences)
        found.append({"out": out.detach()} | gradients(out, layer, x))
    assert_all_close(found[1], found[0])


def kept_elements(layer: HSTULayer, x: Tensor, sequences: Sequences) -> tuple[float, float]:
    """Counts per token what a forward pass saves: elements in the type of x, and bytes of masks."""
    kept: dict[int, Tensor] = {}
    ours = {p.data_ptr() for p in layer.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in ours:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x, sequences)
    of_tokens = [each for each in kept.values() if each.untyped_storage().nbytes() >= x.shape[0]]
    masks = sum(each.untyped_storage().nbytes() for each in of_tokens if each.dtype == torch.bool)
    rest = sum(each.untyped_storage().nbytes() / 4 for each in of_tokens if each.dtype == torch.float32)
    return rest / x.shape[0], masks / x.shape[0]


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_layer_keeps_what_it_says(name: str) -> None:
    config = replace(DEFINITIONS[name], dim=32, max_length=150, qk_dim=16, v_dim=24, dropout=0.1, num_time_buckets=0)
    # Columns of x, of the projection to u, v, q and k, of the attention output, and of the gated output.
    e, p, v, g = config.dim, sum(config.projection_widths), config.gate_width, config.output_width
    sequences = Sequences(offsets=offsets_of([100, 150]), max_length=150)
    x = tokens(e, num=250, dtype=torch.float32).requires_grad_()
    # With SiLU on u alone, v, q and k stay in the projection. SiLU of u is never saved.
    activated = p - v if config.activated == "all" else 0
    of_norms = 4  # Two statistics of each of the two norms.
    expected = {
        "none": 2 * e + p + activated + v + g + of_norms,
        "norm_and_gate": e + p + v,
        "projection": e + v,
        "all": e,
    }
    for recompute, elements in expected.items():
        layer = layer_of(replace(config, recompute=recompute), dtype=torch.float32)
        assert kept_elements(layer, x, sequences) == (elements, g), recompute  # The dropout mask has g bytes.


@pytest.mark.parametrize("recompute", ["none", "norm_and_gate", "all"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_autocast_multiplies_in_bfloat16_and_keeps_the_residual_in_float32(name: str, recompute: Any) -> None:
    config = replace(DEFINITIONS[name], recompute=recompute)
    layer, sequences = layer_of(config, dtype=torch.float32), batch_of()
    x = tokens(config.dim, dtype=torch.float32).requires_grad_()
    exact = layer(x, sequences)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, sequences)
    assert out.dtype == torch.float32
    assert not torch.equal(out, exact)
    wanted, found = gradients(exact, layer, x), gradients(out, layer, x)
    torch.testing.assert_close(out, exact, rtol=0.05, atol=0.1)
    for each in wanted:
        assert found[each].dtype == torch.float32
        assert torch.linalg.norm(found[each] - wanted[each]) < 0.1 * torch.linalg.norm(wanted[each]), each


def on_device(sequences: Sequences, device: str) -> Sequences:
    return replace(
        sequences,
        **{each: value.to(device) for each, value in vars(sequences).items() if isinstance(value, Tensor)},
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("recompute", ["none", "norm_and_gate"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_layer_of_bfloat16_is_near_that_of_float64(name: str, recompute: Any, device: str) -> None:
    # Wide enough for kernels to load rows as vectors.
    config = replace(DEFINITIONS[name], recompute=recompute, dim=64, qk_dim=32, v_dim=32)
    found = []
    for dtype, target in ((torch.bfloat16, device), (torch.float64, "cpu")):
        layer = layer_of(config).to(torch.bfloat16).to(target, dtype)  # The same weights.
        x = (0.3 * tokens(config.dim)).to(torch.bfloat16).to(target, dtype).requires_grad_()
        out = layer(x, on_device(batch_of(), target))
        found.append({"out": out.detach()} | gradients(out, layer, x))
        assert {each.dtype for each in found[-1].values()} == {dtype}
    for each, exact in found[1].items():
        assert torch.linalg.norm(found[0][each].cpu() - exact) < 0.1 * torch.linalg.norm(exact), each


@pytest.mark.parametrize("recompute", ["none", "norm_and_gate", "all"])
def test_a_layer_compiles_as_one_graph(recompute: Any) -> None:
    config = replace(DEFINITIONS["research"], recompute=recompute, dropout=0.2)
    layer, sequences = layer_of(config, dtype=torch.float32), batch_of()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for call in (layer, compiled):
        x = tokens(config.dim, dtype=torch.float32).requires_grad_()
        torch.manual_seed(3)
        out = call(x, sequences)
        found.append({"out": out.detach()} | gradients(out, layer, x))
    assert_all_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_batches_of_other_sizes_share_one_graph_after_the_second() -> None:
    layer = layer_of(DEFINITIONS["production"], dtype=torch.float32)
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, fullgraph=True, backend=keep)
    for lengths in ([5, 0, 1, 7], [3, 2], [8, 8, 8], [1, 1, 4, 2, 2]):
        sequences, x = batch_of(lengths), tokens(6, num=sum(lengths), dtype=torch.float32)
        torch.testing.assert_close(compiled(x, sequences), layer(x, sequences))
    assert len(graphs) == 2


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_a_backward_pass_under_autocast_has_the_types_of_the_forward_pass(recompute: Any) -> None:
    config = replace(DEFINITIONS["production"], recompute=recompute)
    layer, sequences = layer_of(config, dtype=torch.float32), batch_of()
    x = tokens(config.dim, dtype=torch.float32).requires_grad_()
    expected = gradients(layer(x, sequences), layer, x)
    out = layer(x, sequences)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_all_close(gradients(out, layer, x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("changed", ["offsets", "time bounds"])
@pytest.mark.parametrize("recompute", ["norm_and_gate", "projection", "all"])
def test_sequences_that_change_before_the_backward_pass_are_an_error(recompute: Any, changed: str) -> None:
    layer, sequences = layer_of(replace(DEFINITIONS["research"], recompute=recompute)), batch_of()
    out = layer(tokens(SIZES["dim"]).requires_grad_(), sequences)
    (sequences.offsets if changed == "offsets" else layer.bias.time_bounds).add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_derivatives_are_refused_and_not_lost() -> None:
    x = tokens(SIZES["dim"]).requires_grad_()
    out = layer_of(DEFINITIONS["research"])(x, batch_of())
    with pytest.raises(NotImplementedError, match="second derivatives of an HSTULayer"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_gradients_of_the_plain_layer_have_gradients() -> None:
    config = replace(DEFINITIONS["production"], attention="reference", recompute="none")
    layer, sequences = layer_of(config), Sequences(offsets=offsets_of([2, 1]), max_length=2)
    x = tokens(config.dim, num=3).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer(x, sequences), x, fast_mode=True)


def test_evaluation_drops_nothing() -> None:
    config = replace(DEFINITIONS["research"], dropout=0.5)
    layer, sequences = layer_of(config), batch_of()
    x = tokens(config.dim)
    assert not torch.equal(layer(x, sequences), layer(x, sequences))
    torch.testing.assert_close(layer.eval()(x, sequences), layer_of(replace(config, dropout=0.0))(x, sequences))


def test_a_batch_without_tokens_gives_none() -> None:
    config = DEFINITIONS["research"]
    out = layer_of(config)(tokens(config.dim, num=0), batch_of([0, 0]))
    assert out.shape == (0, config.dim)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be at least 1, not 0"),
        ({"gate": "none"}, "gate must be one of"),
        ({"scale": "longest"}, "scale must be a number or one of"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"full_attention_tail": 2}, "full_attention_tail needs a window"),
        ({"deterministic": True, "attention": "reference"}, "deterministic is an option of the kernel"),
    ],
)
def test_a_config_that_means_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HSTUConfig(**SIZES | changes)


def test_inputs_that_do_not_fit_are_named() -> None:
    layer, sequences = layer_of(DEFINITIONS["research"]), batch_of()
    with pytest.raises(ValueError, match=r"x must be \(tokens, 6\), not \(13, 5\)"):
        layer(tokens(5), sequences)
    with pytest.raises(ValueError, match="up to 10 tokens; the layer takes 9"):
        layer(tokens(6), replace(sequences, max_length=10))
    with pytest.raises(ValueError, match="needs times and query_times"):
        layer(tokens(6), replace(sequences, query_times=None))
