# SPDX-License-Identifier: Apache-2.0
"""Distributed DLRM inference with bounded-lag exchanges: a rank may run a bounded number of steps ahead of its peers.

Source: Dichev et al., "Faster Distributed Inference-Only Recommender Systems via Bounded Lag Synchronous Collectives",
arXiv 2512.19342, sections IV, V.
"""
