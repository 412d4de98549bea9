# SPDX-License-Identifier: Apache-2.0
"""Prediction of the next film that a user rates: HSTU, compared with SASRec and popularity, on MovieLens files."""
