"""Network of the performance model: machines, collectives, and measured networks."""
