"""Serving: forward passes by operator, the memory of caches, and what software adds to them."""
