"""Measurements as rows, fits to them, intervals, and validation."""
