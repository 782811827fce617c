"""What the bytes of a log mean (FORMAT.md): names, documents, edits, commits, manifests."""
