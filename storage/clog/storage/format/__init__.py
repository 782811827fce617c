"""The meaning of a log's bytes (FORMAT.md): names, documents, edits, commits, manifests."""
