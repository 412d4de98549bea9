# SPDX-License-Identifier: Apache-2.0
"""Layers of sequence recommenders over jagged sequences."""

from headway.nn.checkpoints import renamed_state
from headway.nn.config import HSTUConfig, HSTUStackConfig
from headway.nn.hstu_layer import HSTULayer
from headway.nn.hstu_stack import HSTUStack
from headway.nn.key_value_cache import KeyValueCache
from headway.nn.relative_bias import RelativeBias, log_time_bounds, next_times
from headway.nn.sequences import Sequences

__all__ = [
    "HSTUConfig",
    "HSTULayer",
    "HSTUStack",
    "HSTUStackConfig",
    "KeyValueCache",
    "RelativeBias",
    "Sequences",
    "log_time_bounds",
    "next_times",
    "renamed_state",
]
