"""Figures of results: interactive in notebooks, SVG and PNG on disk."""

from IPython.utils.capture import capture_output

# In a kernel, hvplot adds scripts from the network to the output of the cell that first imports it.
# `repro.figures.notebook` adds the scripts of figures.
with capture_output(stdout=False, stderr=False):
    import hvplot.pandas  # noqa: F401
