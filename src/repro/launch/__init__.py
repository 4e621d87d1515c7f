"""Ranks on this machine or on real nodes, and the store of their results."""
