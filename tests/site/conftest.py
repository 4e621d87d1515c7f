"""A site of made-up results, built once."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    build = Path(__file__).with_name("build_site.py")
    subprocess.run([sys.executable, build, folder, "made-up"], check=True)
    return folder / "site"
