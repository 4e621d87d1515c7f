"""Figures of experiments, measured or predicted."""
