"""Distributed DLRM inference whose ranks may lag behind each other by a bounded number of steps.

Source: "Faster Distributed Inference-Only Recommender Systems via Bounded Lag Synchronous Collectives", sections IV, V.
"""
