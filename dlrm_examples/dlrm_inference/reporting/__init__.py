# SPDX-License-Identifier: Apache-2.0
"""Rows, tables, plots and the HTML report of DLRM inference."""
