# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks of all tests share what most of them import."""

from headway.comm import rank_processes

# The process that forks ranks starts with the first test that has ranks. Each rank of later ones would import these.
rank_processes.PRELOADED += ["headway.hybrid", "headway.training.trainer"]
