"""Readers of training logs, one module per tool."""
