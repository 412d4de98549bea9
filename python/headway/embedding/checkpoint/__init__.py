"""Checkpoints of tables: each rank writes what it owns, and any number of ranks reads what it will own.

A folder holds one checkpoint: ``manifest.json``, and a file for each rank that wrote. A file is a row of blocks, each
the columns of up to 65,536 records of one merged table in the order of their virtual buckets; the manifest says where
blocks are, which buckets they have, and their checksums. It is replaced last and at once, so that a save that is cut
off leaves the checkpoint before it. Keys are (number of the table's name, id): neither other tables nor merging matter.

K records, D values of a vector, S floats of an optimizer's state.
"""

from headway.embedding.checkpoint.manifest import CheckpointError
from headway.embedding.checkpoint.reading import load
from headway.embedding.checkpoint.writing import save

__all__ = ["CheckpointError", "load", "save"]
