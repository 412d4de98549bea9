# SPDX-License-Identifier: Apache-2.0
"""Systems that the benchmark ``hybrid`` compares with."""
