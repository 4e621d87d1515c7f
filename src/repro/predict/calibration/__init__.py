"""Measurements as rows, fits to them, intervals of predictions, and validation."""
