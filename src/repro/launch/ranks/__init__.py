"""A set of ranks on this machine: their supervisor, and what it asks of them."""
