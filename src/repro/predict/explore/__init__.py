"""What is asked of the model: sweeps, plans, larger jobs, whole experiments."""
