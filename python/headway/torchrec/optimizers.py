# SPDX-License-Identifier: Apache-2.0
"""Maps TorchRec's embedding optimizers to those of Headway's tables.

``apply_optimizer_in_backward()`` and a sharder's ``fused_params`` arrive here as one dictionary. Formulas and defaults
are those of ``torch.optim``, also where FBGEMM differs (Adagrad's epsilon, Adam's decay).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType

from headway.embedding import Adagrad, Adam, Optimizer, RowWiseAdagrad, RowWiseAdam, Sgd

_BY_TYPE: dict[Any, type[Optimizer]] = {
    EmbOptimType.SGD: Sgd,
    EmbOptimType.EXACT_SGD: Sgd,
    EmbOptimType.EXACT_ADAGRAD: Adagrad,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: RowWiseAdagrad,
    EmbOptimType.ADAM: Adam,
    EmbOptimType.PARTIAL_ROWWISE_ADAM: RowWiseAdam,
}

_FIELDS = {"learning_rate": "lr", "eps": "eps", "weight_decay": "weight_decay", "betas": "betas",
           "initial_accumulator_value": "initial_accumulator_value"}  # fmt: skip


def optimizer_of(fused_params: Mapping[str, Any], table: str) -> Optimizer | None:
    """Returns the optimizer that TorchRec's parameters request.

    Args:
        fused_params: ``optimizer``, an ``EmbOptimType``, and its values by their names in FBGEMM or ``torch.optim``.
        table: name of the table, for messages.
    Returns:
        the optimizer; None if no optimizer is named.
    Raises:
        ValueError: the optimizer has no counterpart, or a value is set that it does not support.
    """
    asked = dict(fused_params)
    kind = asked.pop("optimizer", None)
    if "beta1" in asked or "beta2" in asked:
        asked["betas"] = (asked.pop("beta1", 0.9), asked.pop("beta2", 0.999))
    hyperparameters = {field: asked.pop(name) for name, field in _FIELDS.items() if name in asked}
    _expect_neutral(asked, table)
    if kind is None:
        _expect_neutral(hyperparameters, table)
        return None
    if kind not in _BY_TYPE:
        names = ", ".join(str(each.value) for each in _BY_TYPE)
        raise ValueError(f"table {table}: no optimizer of dynamic tables is like {kind}; there are: {names}")
    return _make(_BY_TYPE[kind], hyperparameters, table)


def _make(kind: type[Optimizer], hyperparameters: dict[str, Any], table: str) -> Optimizer:
    if "lr" not in hyperparameters:
        raise ValueError(f"table {table}: {kind.__name__} needs a learning rate")
    known = {name: value for name, value in hyperparameters.items() if name in kind.__dataclass_fields__}
    _expect_neutral({name: value for name, value in hyperparameters.items() if name not in known}, table)
    return kind(**known)


def _expect_neutral(asked: Mapping[str, Any], table: str) -> None:
    """Raises ValueError if an option that tables do not have is set to other than None, False or 0."""
    refused = sorted(name for name, value in asked.items() if value not in (None, False, 0))
    if refused:
        raise ValueError(f"table {table}: dynamic tables have nothing for {', '.join(refused)}")
