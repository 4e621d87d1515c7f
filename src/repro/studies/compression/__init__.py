"""Compressed communication: iteration times, losses and predictions."""
