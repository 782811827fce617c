"""Reading at one version: scans, tables, changes, look-ups, offsets."""
