"""Figures of predictions: larger jobs, open models, other hardware, serving."""
