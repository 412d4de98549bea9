"""What the benchmarks share: starting the programs, pairing runs, tables, plots and JSON lines."""
