# SPDX-License-Identifier: Apache-2.0
"""Training of click and long-view prediction in time order, while new ids keep arriving."""
