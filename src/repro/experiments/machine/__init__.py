"""Measure this machine by itself: operators, decoders and iterations of its CPU and its GPU."""
