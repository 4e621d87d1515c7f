"""Logs of collectives that other tools made: one reader a tool, one entry."""
