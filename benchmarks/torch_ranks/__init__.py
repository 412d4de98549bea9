"""One rank of the benchmarks at torch's level."""
