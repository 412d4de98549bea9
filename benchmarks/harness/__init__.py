# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmarks: starting the programs, pairing runs, tables, plots and JSON lines."""
