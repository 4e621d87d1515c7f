"""One training step of today's software: fused kernels, and communication behind computing."""
