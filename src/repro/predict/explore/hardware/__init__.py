"""What makes one GPU faster than another, and GPUs that do not exist."""
