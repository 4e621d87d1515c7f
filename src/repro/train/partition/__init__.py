"""Training whose weights, gradients and optimizer states are spread over groups inside groups."""
