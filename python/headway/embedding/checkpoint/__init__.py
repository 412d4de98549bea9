# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tables: N ranks save, M ranks load.

Idea: a key belongs to one of 16,384 virtual buckets (by its hash), and each rank owns a range of buckets. A record is a
row with its key, lookup count, step and optimizer state. Each rank writes the records of its range into a file of its
own. On loading, a rank reads only the blocks whose buckets overlap its new range, and drops the records of other ranks.

Format: a folder holds one checkpoint: ``manifest.json``, and one file ``tables-<save>-<rank>.bin`` for each rank. A
file is a sequence of blocks. A block holds up to 65,536 records of one merged table in the order of their buckets, by
column: ids (int64), table ids, lookup counts, steps of the last lookup (int32), embeddings (D float32 each), optimizer
states (S float32 each). Blocks of pending keys (ids without a row, seen less often than ``min_count``) end after the
counts. The manifest lists offset, size, buckets and CRC-32 of each block.

Example: 2 ranks save; rank 0 owns the buckets 0 to 8191. 3 ranks load; the second one owns the buckets 5462 to 10922.
It reads the blocks of both files that overlap its range.

Invariants: the manifest is replaced last and atomically, after all files are on disk, so an interrupted save leaves the
previous checkpoint valid. A key is (table id, id), and the table id depends on the table's name only: neither other
tables nor merging matter. If one rank fails, all ranks raise CheckpointError.
Complexity: each record is written once. A rank reads its own records, and for each table the rest of the blocks at its
two boundaries. It reads all blocks if the checkpoint has another routing version, i.e. another map of keys to buckets.
"""

from headway.embedding.checkpoint.manifest import CheckpointError
from headway.embedding.checkpoint.reading import load
from headway.embedding.checkpoint.writing import save

__all__ = ["CheckpointError", "load", "save"]
