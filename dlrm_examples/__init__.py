"""Runnable recommendation models and training programs on top of Headway."""
