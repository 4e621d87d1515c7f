"""One training run on one rank, with Megatron-Core, on a GPU or a CPU."""
