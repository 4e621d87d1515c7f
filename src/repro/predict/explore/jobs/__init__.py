"""One job: how to split it over GPUs, what fits, what it moves, and at which scale."""
