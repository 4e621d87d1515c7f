"""Pages with sliders: measured and predicted iterations, parallel plans, and hypothetical GPUs."""
