"""The published claims, and what the results say about them."""
