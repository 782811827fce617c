"""Keys: their hashes, their partitions, and indexes that save reading them."""
