"""Data objects: records become Parquet files, and rows of files become records."""
