# SPDX-License-Identifier: Apache-2.0
"""Runnable recommendation models and training programs on top of Headway."""
