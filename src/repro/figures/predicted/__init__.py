"""What only the performance model is asked: larger jobs, open models, other hardware, serving."""
