"""Pages with sliders: iterations and parallel plans, and a job of one's own."""
