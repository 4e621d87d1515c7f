"""Measurements of this machine by itself: operators, decoders, iterations of its CPU and GPU."""
