"""The wheel works by itself: outside the clone, without extras, as an ordinary user."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.paths import ROOT

pytestmark = pytest.mark.slow

_LARGEST_WHEEL_MB, _LARGEST_INSTALLATION_MB = 15, 350
# Parts that measure, draw and publish.
_EXTRA_MODULES = (
    "torch",
    "megatron",
    "dvc",
    "jupyterlab",
    "papermill",
    "panel",
    "sphinx",
    "hvplot",
)
_ANSWERS = {
    "claims --reference C017": "reproduced",
    "busbw dgx-h100 log.txt": "as expected",
    "what-if llama3.1-70b --gpus 64 --global-batch 256": "iteration_s",
    "fits llama3.1-70b --gpus 64": "largest model that fits",
    "serve-estimate llama3.1-70b": "tokens/s/GPU",
    "validate runs.csv": "korthikanti_table5",
    "--version": "repro ",
}
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, as an installer does without a wheel at hand."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its dependencies, and nothing else."""
    environment = tmp_path_factory.mktemp("an environment")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "pip"), "install", "--quiet"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, str(wheel)], check=True, capture_output=True)
    return environment


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run `repro` in an empty folder, which is the working directory."""

    def run(
        *arguments: str, program: str = "repro", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **variables}
        command = [str(installed / "bin" / program), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    return run


def test_the_wheel_is_small_and_has_no_file_twice(wheel: Path) -> None:
    assert wheel.stat().st_size < _LARGEST_WHEEL_MB * 1e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        contents = [archive.read(name) for name in names]
    assert len(names) == len(set(names))
    large = [content for content in contents if len(content) > 1000]
    assert len(large) == len(set(large))
    assert "repro/_data/params/gpus.yaml" in names
    assert not [name for name in names if "enwiki" in name or name.startswith("tests")]


def test_only_the_base_is_installed_and_imported(installed: Path, run: Run) -> None:
    packages = installed / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    assert not [name for name in _EXTRA_MODULES if (packages / name).exists()]
    # Bytecode is a cache of the interpreter; pip is not ours.
    size = sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
        if path.relative_to(packages).parts[0] not in ("pip", "setuptools")
    )
    assert size < _LARGEST_INSTALLATION_MB * 1e6


@pytest.mark.parametrize("arguments", _ANSWERS)
def test_a_question_is_answered_anywhere(arguments: str, run: Run, tmp_path: Path) -> None:
    log = ROOT / "tests" / "logs" / "samples" / "recent_all_reduce.txt"
    (tmp_path / "log.txt").write_text(log.read_text())
    rows = ROOT / "data" / "published" / "training_a100_tables.csv"
    (tmp_path / "runs.csv").write_text(rows.read_text())
    before = set(tmp_path.rglob("*"))
    result = run(*arguments.split())
    assert result.returncode == 0, result.stderr
    assert _ANSWERS[arguments] in result.stdout
    assert set(tmp_path.rglob("*")) == before


def test_own_parameters_are_read_over_the_packages_file_by_file(run: Run, tmp_path: Path) -> None:
    text = (ROOT / "params" / "protocols.yaml").read_text()
    home = tmp_path / "home"
    (home / "params").mkdir(parents=True)
    (home / "params" / "protocols.yaml").write_text(
        text.replace("effective_gbps: 9.41", "effective_gbps: 0.941")
    )
    command = ("busbw", "pinnacles", "--protocol", "tcp", "--size", "1GiB")
    theirs = run(*command).stdout.splitlines()[-1].split()
    own = run(*command, REPRO_HOME=str(home)).stdout.splitlines()[-1].split()
    # The middle of the interval, in GB/s, follows the rate.
    assert float(own[3]) == pytest.approx(float(theirs[3]) / 10, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [("explore", "explorer"), ("figures", "notebooks"), ("compute", "testbed"), ("gpu", "testbed")],
)
def test_a_missing_part_is_one_line_that_names_its_extra(
    arguments: str, extra: str, run: Run
) -> None:
    result = run(*arguments.split())
    (line,) = result.stderr.splitlines()
    assert result.returncode == 1
    assert f"the extra '{extra}'" in line


@pytest.mark.parametrize("command", ["pipeline", "site"])
def test_a_command_of_the_clone_says_so(command: str, run: Run) -> None:
    result = run(command)
    assert result.returncode == 1
    assert "in a clone of the repository" in result.stderr
