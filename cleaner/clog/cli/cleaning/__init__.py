"""Commands that clean: once, and the daemon."""
