# SPDX-License-Identifier: Apache-2.0
"""``expect_same_training()``: ranks that have been started by hand may have been given different settings.

Without this check they would wait for exchanges that others do not make, or learn different weights unnoticed.
"""

from __future__ import annotations

import torch.distributed as dist

from headway.config_files import ConfigError
from headway.embedding.checkpoint.rank_values import all_gather
from headway.training.config import TrainingConfig, differences

#: Settings that ranks choose for themselves. Files are compared by their contents, since hosts have their own paths.
_OF_A_RANK = ("data.train ", "data.evaluation ", "data.read_ahead ")


def expect_same_training(config: TrainingConfig, fingerprint: str, group: dist.ProcessGroup | None) -> None:
    """Checks that all ranks have the same settings and data. All ranks call it.

    Args:
        config: settings of this rank.
        fingerprint: of its data.
        group: ranks of the training; None: one rank.
    Raises:
        ConfigError: they differ; the message names the settings, and the values of two ranks.
    """
    values = config.as_dict()
    # Settings at the top of the file have no section.
    settings = {"": {name: value for name, value in values.items() if not isinstance(value, dict)}} | {
        name: value for name, value in values.items() if isinstance(value, dict)
    }
    of_ranks = all_gather((settings, fingerprint), group)
    first, first_fingerprint = of_ranks[0]
    for rank, (other, other_fingerprint) in enumerate(of_ranks):
        found = differences(first, other, sections=first, between=("rank 0", f"rank {rank}"))
        found = [each for each in found if not each.startswith(_OF_A_RANK)]
        if other_fingerprint != first_fingerprint:
            found.append(f"rank {rank} has other files in data.train than rank 0")
        if found:
            raise ConfigError(f"ranks were given different settings: {'; '.join(found)}")
