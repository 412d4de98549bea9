# SPDX-License-Identifier: Apache-2.0
"""The process group: backend, collectives, statistics, traces. ``headway`` exports its public names."""
