"""Retention and sealing: what expires by rule, not by key; partitions that cannot be cleaned."""
