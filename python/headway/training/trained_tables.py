# SPDX-License-Identifier: Apache-2.0
"""The tables of a model in training: on its ranks (mode ``local``), or on parameter servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from headway.config_files import ConfigError
from headway.embedding import HashTableCollection
from headway.hybrid import HybridConfig, HybridTables

TrainedTables = HashTableCollection | HybridTables


def tables_of(model: nn.Module) -> list[TrainedTables]:
    """Returns the tables of a model."""
    return [each for each in model.modules() if isinstance(each, TrainedTables)]


def expect_mode(tables: Sequence[TrainedTables], config: HybridConfig) -> None:
    """Checks that the tables of a model are those of the mode of its training.

    Raises:
        ConfigError: they are not. The message has both.
    """
    advice = "make the tables with headway.hybrid.connect(config, ...), where config is that of the training"
    if config.mode == "local":
        if any(isinstance(each, HybridTables) for each in tables):
            raise ConfigError(f'the model has tables on parameter servers, and mode is "local": {advice}')
        return
    for each in tables:
        if not isinstance(each, HybridTables):
            raise ConfigError(f'the model has tables on its ranks, and mode is "{config.mode}": {advice}')
        if each.config.most_missing_steps != config.most_missing_steps:
            raise ConfigError(
                f"the tables of the model have a staleness of {each.config.most_missing_steps}, and the training has "
                f"{config.most_missing_steps}: {advice}"
            )
    if len(tables) > 1:
        raise ConfigError(f"the model has {len(tables)} HybridTables, and servers have the tables of one")


@contextlib.contextmanager
def reading(tables: Sequence[TrainedTables]) -> Iterator[None]:
    """A context in which lookups at parameter servers read rows, and begin no step."""
    of_servers = [each for each in tables if isinstance(each, HybridTables)]
    modes = [each.training for each in of_servers]
    try:
        for each in of_servers:
            each.eval()
        yield
    finally:
        for each, mode in zip(of_servers, modes, strict=True):
            each.train(mode)
