"""Models, groups and messages of Megatron-Core, on a GPU or a CPU."""
