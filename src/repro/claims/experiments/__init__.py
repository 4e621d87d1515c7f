"""Answers to claims, one module per experiment or study, each with a table `ANSWERS`."""
