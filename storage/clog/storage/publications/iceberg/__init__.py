"""The table as an Iceberg table (format 3), with deletion vectors over the log's objects."""
