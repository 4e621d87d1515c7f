"""Megatron-Core's models, groups and messages, on a GPU or a CPU."""
