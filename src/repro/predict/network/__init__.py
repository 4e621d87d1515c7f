"""Collectives and messages on one network: their time, their limits, their expected rates."""
