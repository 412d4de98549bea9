# SPDX-License-Identifier: Apache-2.0
"""Data sets of the example, as columns of jagged ids in time order."""
