"""Prediction of the next film that a user rates: HSTU beside SASRec and popularity, on MovieLens files."""
