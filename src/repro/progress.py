"""Progress that leaves nothing behind in a notebook."""

import sys


def clear_progress() -> None:
    """Clear what bars wrote into the output of a notebook's cell, once all went well.

    Until then it is there, and papermill's log tells how far the cell is.
    """
    if "ipykernel" in sys.modules:
        from IPython.display import clear_output

        clear_output()  # type: ignore[no-untyped-call]
