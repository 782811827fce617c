"""Keys: their hashes, their partitions, and indexes that spare reading them."""
