"""A fault of the disk loses nothing that was there, and one line says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from without_namespaces import drop_capabilities
from writers import FAULTS, WRITERS

from repro.launch.store import Store

pytestmark = pytest.mark.slow

_HERE = Path(__file__).with_name("writers.py")
_MOUNT = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"')
# By fault: what the system says.
_SAID = {
    "full disk": "No space left on device",
    "read-only file system": "Read-only file system",
    "unwritable folder": "Permission denied",
    "no rename": "Function not implemented",
}
# Parts that a later run goes on with.
_KEPT = {"articles": "articles.jsonl.parts-", "download": "dump.xml.bz2.part"}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_there_remains(fault: str, writer: str, tmp_path: Path) -> None:
    command = [sys.executable, str(_HERE), fault, writer, str(tmp_path)]
    if fault in ("full disk", "read-only file system"):
        command = [*_MOUNT, str(tmp_path), *command]
        if subprocess.run([*_MOUNT, str(tmp_path), "true"], capture_output=True).returncode:
            pytest.skip("no mount namespaces")
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=drop_capabilities)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    *_, message = done.stderr.splitlines()
    # netCDF's library calls a full disk a lack of permission.
    said = "cannot be written" if writer == "dataset of a log" else _SAID[fault]
    assert said in message and "; fix: " in message
    remains = json.loads(done.stdout.splitlines()[-1])
    assert not remains["changed"]
    assert all(name.startswith(_KEPT.get(writer, "none")) for name in remains["more"])


_FILE_LIMIT = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
import numpy as np, xarray as xr
from repro.launch.store import Store
noise = np.random.default_rng(0).random(100_000)
large = xr.Dataset({'loss': ('iteration', noise)})
Store(Path(sys.argv[1])).find_or_run({'gpus': 8}, 'cpu', lambda: large)
"""


def test_finished_configurations_are_kept(tmp_path: Path) -> None:
    store, small = Store(tmp_path), xr.Dataset({"loss": ("iteration", np.arange(3.0))})
    store.find_or_run({"gpus": 2}, "cpu", lambda: small)
    command = [sys.executable, "-c", _FILE_LIMIT, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert "cannot be written" in found.stderr.splitlines()[-1]
    kept = store.find_or_run({"gpus": 2}, "cpu", xr.Dataset)
    assert kept is not None and kept.equals(small)
    assert len(list(tmp_path.iterdir())) == 1
