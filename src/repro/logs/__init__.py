"""Readers of other tools' logs: one module per tool; `reading` recognizes the tool."""
