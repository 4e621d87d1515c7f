"""Collectives as nccl-tests measures and defines them."""
