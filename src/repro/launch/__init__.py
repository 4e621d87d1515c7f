"""Where ranks run, and what they return."""
