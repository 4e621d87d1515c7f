"""Ranks on real nodes: this machine's GPUs or Slurm partitions, and the proof of protocols."""
