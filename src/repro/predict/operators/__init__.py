"""Single kernels: what their work takes on a GPU, and how far that is from what was measured."""
