"""The papers' figures, drawn from results: interactive in a notebook, SVG and PNG on disk."""
