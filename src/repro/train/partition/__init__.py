"""Training with weights, gradients and optimizer states sharded across nested groups."""
