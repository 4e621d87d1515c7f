"""Collectives as nccl-tests defines them: bandwidths, measurement, and traffic per link."""
