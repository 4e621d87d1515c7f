"""Communication, memory, partitioning and compression at full scale."""
