"""Runnable recommendation models and trainers on top of headway."""
