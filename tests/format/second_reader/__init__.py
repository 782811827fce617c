"""A reader of the log format, written from FORMAT.md alone; it imports nothing of clog."""
