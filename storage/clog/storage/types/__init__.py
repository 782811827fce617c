"""Types of keys and values: as columns, as what users give, and how they evolve."""
