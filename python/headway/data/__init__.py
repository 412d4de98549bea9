# SPDX-License-Identifier: Apache-2.0
"""Training data: Parquet folders of user sequences, as jagged batches in an order that does not depend on the ranks."""

from headway.data.budget_reader import Budget, BudgetReader
from headway.data.parquet import DataError, ParquetFolder
from headway.data.reader import BatchReader, Position, ReadOptions
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema

__all__ = [
    "BatchReader",
    "Budget",
    "BudgetReader",
    "DataError",
    "ParquetFolder",
    "Position",
    "ReadOptions",
    "SampleBatch",
    "SampleSchema",
]
