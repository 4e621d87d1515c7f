"""The schema of every result, and reading and writing it."""
