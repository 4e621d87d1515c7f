"""Benchmark of the whole pipeline: duration, seconds per stage and activity, and peak memory.

It clones the committed project into a temporary folder, runs `repro pipeline` there with this
environment and samples the memory of all its processes. No other program should run meanwhile.

    python benchmarks/pipeline.py default   # budgets: 30 minutes, 4 GiB
    python benchmarks/pipeline.py ci        # budgets: 12 minutes, 4 GiB
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import xarray as xr

from repro.paths import ROOT

_BUDGET_MINUTES = {"default": 30, "ci": 12}
_BUDGET_GIB = 4
_SAMPLE_S = 2.0
_RUN = "from repro.cli import main; main()"


def _tree(pid: int) -> list[int]:
    """Return the ids of a process and of its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return [pid, *(descendant for child in children for descendant in _tree(child))]


def _memory_bytes() -> int:
    """Return the proportional set size (PSS) of all processes that this one has started."""
    total = 0
    for process in _tree(os.getpid())[1:]:
        with suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _table(results: Path, profile: str) -> pd.DataFrame:
    """Return the seconds of each stage, and of each activity of the measuring stages."""
    stages = json.loads((results / "stage_times.json").read_text())[profile]
    table = pd.DataFrame({"stage": pd.Series(stages)})
    for name in stages:
        path = results / f"{name.removeprefix('experiment@').replace('@', '-')}.nc"
        if path.exists():
            with xr.open_dataset(path) as dataset:
                spent = json.loads(dataset.attrs.get("spent_s", "{}"))
            for activity, seconds in spent.items():
                table.loc[name, activity] = seconds
    return pd.concat([table, table.sum().to_frame("sum").T]).round(1)


def main() -> None:
    """Run the profile named on the command line, and print time and memory with their budgets."""
    profile = sys.argv[1] if len(sys.argv) > 1 else "default"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "repro"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(clone / "src")}
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, "pipeline", profile], cwd=clone, env=environment
        )
        peak = 0
        while process.poll() is None:
            with suppress(OSError):
                peak = max(peak, _memory_bytes())
            time.sleep(_SAMPLE_S)
        minutes = (time.monotonic() - start) / 60
        table = _table(clone / "results", profile)
    print(table.to_string(na_rep=""))
    print(f"exit status {process.returncode}")
    print(f"{minutes:.1f} minutes, budget {_BUDGET_MINUTES[profile]}")
    print(f"{peak / 2**30:.2f} GiB peak memory, budget {_BUDGET_GIB}")


if __name__ == "__main__":
    main()
