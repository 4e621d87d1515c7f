"""Progress bars of notebook cells."""

import sys


def clear_progress() -> None:
    """Clear the progress bars from a notebook cell's output after its work succeeded.

    Until then they show, and papermill logs, how far the cell is.
    """
    if "ipykernel" in sys.modules:
        from IPython.display import clear_output

        clear_output()  # type: ignore[no-untyped-call]
