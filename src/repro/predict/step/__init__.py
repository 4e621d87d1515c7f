"""One training step on one machine: kernels, layers, stages, schedule, memory."""
