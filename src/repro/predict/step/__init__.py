"""Training step of Megatron-LM of 2021: layers, phases, pipelines and memory."""
