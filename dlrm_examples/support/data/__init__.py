# SPDX-License-Identifier: Apache-2.0
"""Readers of click logs and of CSV files, and a generator of Zipf-distributed ids."""
