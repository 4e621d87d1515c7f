"""Pool of ranks on this machine: its supervisor and its processes."""
