"""Views of the table in formats of others, which name the log's own objects (FORMAT.md §14)."""
