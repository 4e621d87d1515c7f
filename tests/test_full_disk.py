"""A disk that is full loses nothing that was finished, and one line says so."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from repro.atomic import replace_text
from repro.launch.store import Store

pytestmark = pytest.mark.slow

# Files larger than this cannot be written: what a full disk is to an ordinary user's test.
_LIMIT = 4096
_WRITE = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
{what}
"""


def _in_little_space(what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = _WRITE.format(limit=_LIMIT, what=what)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_a_text_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    replace_text(path, "before")
    found = _in_little_space(
        "from repro.atomic import replace_text\nreplace_text(Path(sys.argv[1]), 'x' * 100_000)",
        str(path),
    )
    assert (
        "claims.json: cannot be written (File too large); fix: free disk space or choose another "
        "folder, then run the same command again to resume" in found.stderr
    )
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["claims.json"]


def test_finished_configurations_are_kept(tmp_path: Path) -> None:
    store, small = Store(tmp_path), xr.Dataset({"loss": ("iteration", np.arange(3.0))})
    store.find_or_run({"gpus": 2}, "cpu", lambda: small)
    found = _in_little_space(
        "import numpy as np, xarray as xr\n"
        "from repro.launch.store import Store\n"
        "noise = np.random.default_rng(0).random(100_000)\n"
        "large = xr.Dataset({'loss': ('iteration', noise)})\n"
        "Store(Path(sys.argv[1])).find_or_run({'gpus': 8}, 'cpu', lambda: large)",
        str(tmp_path),
    )
    assert "cannot be written" in found.stderr.splitlines()[-1]
    assert store.find_or_run({"gpus": 2}, "cpu", xr.Dataset).equals(small)
    assert len(list(tmp_path.iterdir())) == 1
