"""Transactions: what is committed together or not at all, under ids that one holder has (S48)."""
