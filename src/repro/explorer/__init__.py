"""A page with sliders: measured and predicted iterations side by side, and plans to choose from."""
