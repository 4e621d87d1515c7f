"""The papers' figures, of measured or predicted experiments."""
