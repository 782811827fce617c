"""Bitmaps of rows of chunks, and the masks that are made of them (FORMAT.md §5.4, §13)."""
