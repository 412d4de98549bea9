"""Keys, their duplicates and their owners: what collections are made of, for those who build their own."""

from headway._embedding import Deduplicator, Keys, UniqueKeys, Workers, first_bucket_of, route, take_as_unique
from headway.embedding.merging import table_number

__all__ = [
    "Deduplicator",
    "Keys",
    "UniqueKeys",
    "Workers",
    "first_bucket_of",
    "route",
    "table_number",
    "take_as_unique",
]
