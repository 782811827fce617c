"""Types of keys and values: as columns, as users give them, and how they evolve."""
