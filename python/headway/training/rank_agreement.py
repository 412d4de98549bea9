# SPDX-License-Identifier: Apache-2.0
"""``expect_same_training()``: ranks that have been started by hand may have been given different settings.

Without this check they would wait for exchanges that others do not make, or learn different weights unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from headway.config_files import ConfigError
from headway.embedding.checkpoint.rank_values import all_gather
from headway.training.config import TrainingConfig, differences, effective

#: Settings that ranks choose for themselves. Hosts may have the files elsewhere, so names, sizes and numbers of rows of
#: the files are compared instead.
_OF_A_RANK = ("data.train", "data.evaluation", "data.read_ahead")


def expect_same_training(
    config: TrainingConfig, fingerprints: Mapping[str, str], group: dist.ProcessGroup | None
) -> None:
    """Checks that all ranks have the same settings and data. All ranks call it.

    Args:
        config: settings of this rank.
        fingerprints: of its folders, by setting; see ``ParquetFolder.fingerprint``.
        group: ranks of the training; None: one rank.
    Raises:
        ConfigError: they differ; the message names the settings, and the values of two ranks.
    """
    of_ranks = all_gather((effective(config.as_dict()), dict(fingerprints)), group)
    first, first_fingerprints = of_ranks[0]
    for rank, (other, other_fingerprints) in enumerate(of_ranks):
        found = [
            each.between("rank 0", f"rank {rank}")
            for each in differences(first, other, sections=first)
            if each.key not in _OF_A_RANK
        ]
        for key in sorted({*first_fingerprints, *other_fingerprints}):
            if first_fingerprints.get(key) != other_fingerprints.get(key):
                found.append(f"rank {rank} has other files in {key} than rank 0")
        if found:
            raise ConfigError(f"ranks were given different settings: {'; '.join(found)}")
