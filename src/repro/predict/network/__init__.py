"""One collective or message on one network: its time, its limits, what to expect of it."""
