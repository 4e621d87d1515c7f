"""Communication, compression, partitioning, operators and memory: measured beside predicted."""
