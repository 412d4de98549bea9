# SPDX-License-Identifier: Apache-2.0
"""Training data: Parquet folders of user sequences, as jagged batches in an order that no number of ranks changes."""

from headway.data.parquet import DataError, ParquetFolder
from headway.data.reader import BatchReader, Position
from headway.data.sample_batch import SampleBatch
from headway.data.schema import SampleSchema

__all__ = ["BatchReader", "DataError", "ParquetFolder", "Position", "SampleBatch", "SampleSchema"]
