"""Masks of superseded rows: kept up with what is appended, carried over by what is rewritten."""
