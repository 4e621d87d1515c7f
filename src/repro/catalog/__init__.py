"""What is studied: models, clusters, protocols and experiments, read from `params/`."""
