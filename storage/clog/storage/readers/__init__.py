"""Named readers: how far each has come, which the log is told and nothing depends on (FORMAT.md
§18, S64).
"""
