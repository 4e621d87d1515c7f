"""Memory of training: published measurements and predictions."""
