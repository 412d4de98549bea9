# SPDX-License-Identifier: Apache-2.0
"""Training of recommendation models on any number of ranks.

::

    from headway.training import Trainer, TrainingConfig

    result = Trainer(TrainingConfig.load("grm.toml"), model=my_model).run()
"""

from headway.training.config import (
    CheckpointConfig,
    ConfigError,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainingConfig,
)
from headway.training.gradients import TrainableModel, global_counts, sum_gradients
from headway.training.trainer import Trainer, TrainingResult

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "TrainableModel",
    "Trainer",
    "TrainingConfig",
    "TrainingResult",
    "global_counts",
    "sum_gradients",
]
