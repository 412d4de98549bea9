# SPDX-License-Identifier: Apache-2.0
"""A generative recommender on generated logs and on KuaiRand."""
