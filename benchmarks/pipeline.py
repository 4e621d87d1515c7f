"""How long the whole pipeline takes, and how much memory its processes use at most.

Clones the committed project into a temporary folder, runs `dvc repro` there with this environment
and samples the memory of all its processes. Nothing else should run meanwhile.

    python benchmarks/pipeline.py default   # budgets: 15 minutes, 8 GiB
    python benchmarks/pipeline.py ci        # budgets: 4 minutes, 8 GiB
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from repro.paths import ROOT

_BUDGET_MINUTES = {"default": 15, "ci": 4}
_BUDGET_GIB = 8
_SAMPLE_S = 2.0


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return [pid, *(descendant for child in children for descendant in _tree(child))]


def _memory_bytes(pid: int) -> int:
    """Proportional set size of a process tree: pages that several share count once."""
    total = 0
    for process in _tree(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def main() -> None:
    """Run the profile named on the command line and print time and memory beside the budgets."""
    profile = sys.argv[1] if len(sys.argv) > 1 else "default"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "repro"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        parameters = clone / "params" / "pipeline.yaml"
        text = parameters.read_text().replace("profile: default", f"profile: {profile}")
        parameters.write_text(text)
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(clone / "src")}
        start = time.monotonic()
        process = subprocess.Popen(["dvc", "repro"], cwd=clone, env=environment)
        peak = 0
        while process.poll() is None:
            with suppress(OSError):
                peak = max(peak, _memory_bytes(process.pid))
            time.sleep(_SAMPLE_S)
        minutes = (time.monotonic() - start) / 60
    print(f"exit status {process.returncode}")
    print(f"{minutes:.1f} minutes, budget {_BUDGET_MINUTES[profile]}")
    print(f"{peak / 2**30:.2f} GiB at most, budget {_BUDGET_GIB}")


if __name__ == "__main__":
    main()
