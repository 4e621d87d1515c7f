"""What is recorded beside the timers: NIC counters, and the environment of a run."""
