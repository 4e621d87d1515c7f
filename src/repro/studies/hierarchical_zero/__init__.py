"""ZeRO on three levels of links: partitions, traffic by level and throughput."""
