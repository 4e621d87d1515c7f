"""From a selection to resolved cases and their datasets, for each source."""
