"""Training run of one rank with Megatron-Core, on a GPU or a CPU."""
