# SPDX-License-Identifier: Apache-2.0
"""Converts checkpoints of the authors' code (generative-recommenders) to those of :class:`HSTUStack`.

``SequentialTransductionUnitJagged``, the layer of its experiments, becomes ``HSTUConfig.research()``. ``STULayer``, the
layer of its production code, becomes ``HSTUConfig.production()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

#: Name inside a layer of the authors' code -> name inside ``HSTULayer``.
#: The research code stores the matrix of ``_o`` as (outputs, inputs).
_NAMES = {
    "_uvqk": "uvqk_weight",
    "_o.weight": "output_weight",
    "_o.bias": "output_bias",
    "_rel_attn_bias._pos_w": "bias.position_weights",
    "_rel_attn_bias._w": "bias.position_weights",
    "_rel_attn_bias._ts_w": "bias.time_weights",
    "_uvqk_weight": "uvqk_weight",
    "_uvqk_beta": "uvqk_bias",
    "_input_norm_weight": "input_norm_weight",
    "_input_norm_bias": "input_norm_bias",
    "_output_weight": "output_weight",
    "_output_norm_weight": "output_norm_weight",
    "_output_norm_bias": "output_norm_bias",
}
_TRANSPOSED = {"_o.weight"}
_LAYER = re.compile(r"(?:^|\.)(?:_attention_layers|_stu_layers)\.(\d+)\.(.+)$")


def renamed_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames the weights of HSTU layers for ``HSTUStack.load_state_dict()``.

    Args:
        state: state of a whole model or of its layers, with one stack. Weights outside of layers, such as embeddings,
            are left out.

    Returns:
        the state of a stack. Tensors are shared with ``state``.

    Raises:
        ValueError: the state has no layer, a layer has an unknown weight, or two weights get the same name because the
            model has several stacks.
    """
    renamed: dict[str, Tensor] = {}
    old_names: dict[str, str] = {}
    for name, tensor in state.items():
        found = _LAYER.search(name)
        if found is None:
            continue
        layer, inner = found.groups()
        if inner not in _NAMES:
            raise ValueError(f"{name}: HSTU layers have no such weight; known are {', '.join(_NAMES)}")
        new = f"layers.{layer}.{_NAMES[inner]}"
        if new in renamed:
            raise ValueError(f"{old_names[new]} and {name} are both {new}: give the weights of one stack")
        renamed[new], old_names[new] = tensor.t() if inner in _TRANSPOSED else tensor, name
    if not renamed:
        raise ValueError("no weight of an HSTU layer: names have _attention_layers.N. or _stu_layers.N. in them")
    return renamed
