"""Parallel layouts of a training step, and the volumes that ranks communicate."""
