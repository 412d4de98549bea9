# SPDX-License-Identifier: Apache-2.0
"""Training of recommendation models on any number of ranks.

::

    from headway.training import Trainer, TrainingConfig

    result = Trainer(TrainingConfig.load("grm.toml"), model=my_model).run()
"""

from headway.config_files import ConfigError
from headway.training.config import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainingConfig,
)
from headway.training.gradients import TrainableModel, loss_of, sum_gradients
from headway.training.loss_scaling import LossScaler
from headway.training.pipeline import Pipeline, PreparedStep
from headway.training.progress import Progress, TrainingResult
from headway.training.train_step import LossError, TrainStep
from headway.training.trainer import Trainer

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "DataConfig",
    "LossError",
    "LossScaler",
    "ModelConfig",
    "OptimizerConfig",
    "Pipeline",
    "PreparedStep",
    "Progress",
    "RunConfig",
    "TrainStep",
    "TrainableModel",
    "Trainer",
    "TrainingConfig",
    "TrainingResult",
    "loss_of",
    "sum_gradients",
]
