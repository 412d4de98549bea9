# SPDX-License-Identifier: Apache-2.0
"""Other programs beside which serving is measured: a server of KServe, and MLPerf's LoadGen as a client."""
