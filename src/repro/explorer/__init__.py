"""Page with sliders: measured and predicted iterations, and parallel plans."""
