# SPDX-License-Identifier: Apache-2.0
"""Programs that run one rank of a torch benchmark."""
