# SPDX-License-Identifier: Apache-2.0
"""Ways to divide the work of a step among ranks."""
