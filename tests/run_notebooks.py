"""Execute notebooks one after another in this process, and print a JSON object of their errors.

    python tests/run_notebooks.py notebooks/a.ipynb notebooks/b.ipynb

A process for each would load torch and holoviews as often.
"""

import json
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path

import nbformat
from IPython.core.interactiveshell import InteractiveShell


def errors_of(path: Path) -> list[str]:
    """What the cells of a notebook raised, displaying their last values included."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    raised: list[str] = []

    def note(*_: object, **__: object) -> None:
        raised.append(traceback.format_exc().strip().splitlines()[-1])

    # Called for errors in a cell, and for those of drawing what it returned.
    shell.showtraceback = note
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source)
    return raised


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        errors = {Path(name).stem: errors_of(Path(name)) for name in sys.argv[1:]}
    print(json.dumps(errors))
