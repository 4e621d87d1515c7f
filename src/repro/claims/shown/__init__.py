"""Which verdicts are shown, and how: on a terminal, in notebooks."""
