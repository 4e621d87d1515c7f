"""Questions to the performance model: jobs, hardware, experiments and studies."""
