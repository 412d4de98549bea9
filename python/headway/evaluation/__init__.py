# SPDX-License-Identifier: Apache-2.0
"""Exact metrics of ranking models, with the same value for any number of ranks."""

from headway.evaluation.auc import auc, gauc, normalized_entropy
from headway.evaluation.full_ranking import Quality, quality_of, ranks_of
from headway.evaluation.target_scores import LabelQuality, TargetScores

__all__ = ["LabelQuality", "Quality", "TargetScores", "auc", "gauc", "normalized_entropy", "quality_of", "ranks_of"]
