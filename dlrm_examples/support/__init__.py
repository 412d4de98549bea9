# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the examples: ranks as processes, command lines, tables, origin of results, data sets."""
