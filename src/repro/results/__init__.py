"""Schema of every result, its files, and the quantities computed from it."""
