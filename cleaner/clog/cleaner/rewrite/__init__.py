"""Rewriting for the layout alone: coalescing, merging, trimming, and purging dead rows."""
