# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of Headway; ``headway bench --list`` names them."""
