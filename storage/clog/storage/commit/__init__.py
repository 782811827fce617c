"""How a change becomes part of a log (COMMIT.md):
the commit loop, and following what others commit.
"""
