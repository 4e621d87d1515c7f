"""Measurement and prediction of what the network costs in distributed LLM training."""
