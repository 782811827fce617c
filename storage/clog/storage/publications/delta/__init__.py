"""The table as a Delta table (protocol 3, 7), with deletion vectors over the log's objects."""
