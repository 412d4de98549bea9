"""Benchmarks of Headway; ``headway bench --list`` names them."""
