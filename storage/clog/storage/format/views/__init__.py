"""What the log knows of published views of its table (FORMAT.md §14)."""
