"""The papers' figures, drawn from results: interactive in a notebook, SVG and PNG on disk."""

from IPython.utils.capture import capture_output

# In a kernel hvplot puts scripts from the network into the output of the cell that first imports
# it. Figures bring their own: `repro.figures.notebook`.
with capture_output(stdout=False, stderr=False):
    import hvplot.pandas  # noqa: F401
