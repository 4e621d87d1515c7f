"""Figures of communication, compression, partitioning, operators and memory."""
