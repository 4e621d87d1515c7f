"""Collectives as nccl-tests defines them: measured here, or read from the logs of other tools."""
