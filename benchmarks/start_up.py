"""Time of short commands, relative to importing the libraries that all of them need.

    python benchmarks/start_up.py [--repeats 7]

Commands and the import alternate, each on one core. The table has medians in seconds, the ratio to
the import, and the slowest imports of each command.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

_IMPORT = [sys.executable, "-c", "import numpy, pandas, xarray"]
_COMMANDS = (
    "--version",
    "--help",
    "busbw pinnacles",
    "what-if llama3.1-70b",
    "fits llama3.1-70b",
    "claims --reference",
)
_SHOWN = 4


def _repro(command: str) -> list[str]:
    return [str(Path(sys.executable).with_name("repro")), *command.split()]


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _slowest_imports(command: str) -> str:
    """Return the packages that take most, with milliseconds, their own imports included."""
    run = [sys.executable, "-X", "importtime", *_repro(command)]
    printed = subprocess.run(run, capture_output=True, text=True).stderr
    cumulative: dict[str, int] = {}
    for line in printed.splitlines():
        if line.startswith("import time:") and line.count("|") == 2:
            _, spent_us, name = line.removeprefix("import time:").split("|")
            if spent_us.strip().isdigit() and "." not in name.strip():
                cumulative[name.strip()] = int(spent_us)
    slowest = sorted(cumulative, key=lambda name: -cumulative[name])[:_SHOWN]
    return ", ".join(f"{name} {cumulative[name] / 1000:.0f}" for name in slowest)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="runs of each command")
    repeats = parser.parse_args().repeats
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    runs = {"import numpy, pandas, xarray": _IMPORT} | {name: _repro(name) for name in _COMMANDS}
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, command in runs.items():
            times[name].append(_seconds(command))
    base_s = median(times["import numpy, pandas, xarray"])
    print(f"{'command':30} {'seconds':>8} {'ratio':>6}  slowest imports, ms")
    for name, found in times.items():
        imports = _slowest_imports(name) if name in _COMMANDS else ""
        print(f"{name:30} {median(found):8.2f} {median(found) / base_s:6.2f}  {imports}")


if __name__ == "__main__":
    main()
