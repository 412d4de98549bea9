# SPDX-License-Identifier: Apache-2.0
"""Folders of checkpoints, and the weights of dense models in them: what trainings of all kinds share."""

from headway.checkpoints.folders import CheckpointFolders, StepManifest, TrainingCheckpointError, free_folder
from headway.checkpoints.weights import load_weights, weights_of

__all__ = ["CheckpointFolders", "StepManifest", "TrainingCheckpointError", "free_folder", "load_weights", "weights_of"]
