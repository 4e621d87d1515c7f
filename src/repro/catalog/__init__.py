"""Catalog of models, clusters, protocols and experiments, read from `params/`."""
