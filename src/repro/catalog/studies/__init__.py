"""Definitions of experiments, sweeps and studies, with their profiles."""
