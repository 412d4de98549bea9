# SPDX-License-Identifier: Apache-2.0
"""Layers of sequence recommenders over jagged sequences, and ``GRM``, a generative recommendation model for ranking."""

from headway.nn.checkpoints import renamed_state
from headway.nn.config import HSTUConfig, HSTUStackConfig
from headway.nn.dropout_keys import keep_mask, token_keys
from headway.nn.grm import GRM, GRMConfig
from headway.nn.hstu_layer import HSTULayer
from headway.nn.hstu_stack import HSTUStack
from headway.nn.key_value_cache import KeyValueCache
from headway.nn.mmoe import MMoE
from headway.nn.relative_bias import RelativeBias, log_time_bounds, next_times
from headway.nn.sequences import Sequences
from headway.nn.token_encoder import EncodedTokens, TokenEncoder

__all__ = [
    "GRM",
    "EncodedTokens",
    "GRMConfig",
    "HSTUConfig",
    "HSTULayer",
    "HSTUStack",
    "HSTUStackConfig",
    "KeyValueCache",
    "MMoE",
    "RelativeBias",
    "Sequences",
    "TokenEncoder",
    "keep_mask",
    "log_time_bounds",
    "next_times",
    "renamed_state",
    "token_keys",
]
