"""Commands that look and check: what is there, whether it is sound, and what it costs."""
