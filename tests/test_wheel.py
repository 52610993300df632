"""The source distribution, the wheel that is made of it, and the wheel in an environment of its own.

Next to it there lie packages that have taken the names `agent` and `shared`.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from covey.shared.programs.version import RELEASE
from scripts.size import FOLDERS
from tests.processes import ROOT

pytestmark = pytest.mark.processes

SOURCES = (*FOLDERS, "examples", "scenarios", "src")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt")
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"
COMMIT = "0123456789abcdef0123456789abcdef01234567"  # that the checkout has
FOREIGN = "raise ImportError('this package belongs to somebody else')\n"


def python(*arguments: str, folder: Path = ROOT) -> None:
    # with the path of a checkout pip would find Covey installed already
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel, as `python -m build` makes them: the second from the first."""
    work = tmp_path_factory.mktemp("wheel")
    tree = work / "tree"
    tree.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").write_text(f"{COMMIT}\n")
    python("-c", BUILD, "build_sdist", str(work), folder=tree)
    (source,) = work.glob("covey-*.tar.gz")
    shutil.unpack_archive(source, work, filter="data")
    unpacked = work / source.name.removesuffix(".tar.gz")
    python("-c", BUILD, "build_wheel", str(work), folder=unpacked)
    (wheel,) = work.glob("covey-*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def environment(distributions: tuple[Path, Path]) -> Path:
    """The bin folder of an environment that has Covey's wheel, and the libraries of ours by a path."""
    _, wheel = distributions
    home = wheel.parent / "env"
    venv.create(home, with_pip=False)
    pip = ["-m", "pip", "--python", str(home / "bin" / "python"), "--quiet"]
    python(*pip, "install", "--no-compile", "--no-deps", "--no-index", str(wheel))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "libraries.pth").write_text("\n".join([*libraries, *site.getsitepackages()]))
    for name in ("agent", "shared"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(FOREIGN)
    return home / "bin"


def run(environment: Path, folder: Path, command: str, *arguments: str) -> str:
    done = subprocess.run(
        [environment / command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(environment), "HOME": str(folder), "COVEY_LEARNER": "numpy"},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_below(folder: Path) -> set[str]:
    """Every file of a folder, behind links too, as a path from it."""
    return {
        str((Path(here) / name).relative_to(folder))
        for here, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.endswith(".pyc") and Path(here).name != "tests"
    }


@pytest.mark.whole
def test_the_wheel_has_every_module_and_data_file(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert packed == {f"covey/{name}" for name in files_below(ROOT / "src" / "covey")}


@pytest.mark.whole
def test_the_source_distribution_has_what_an_installation_wants(
    distributions: tuple[Path, Path],
) -> None:
    """And no tests: they read the folders of a checkout."""
    source, _ = distributions
    with tarfile.open(source) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert packed.issuperset(FILES)
    assert not any(name.startswith("tests") for name in packed)


def test_a_version_has_the_same_number_everywhere() -> None:
    assert f"\nversion: {RELEASE}\n" in (ROOT / "CITATION.cff").read_text()
    assert RELEASE in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.whole
def test_the_commit_of_a_checkout_stays_in_what_is_made_of_it(
    distributions: tuple[Path, Path],
) -> None:
    """The wheel is made of the source distribution, which has no git."""
    for made in distributions:
        assert made.name.startswith(f"covey-{RELEASE}+g{COMMIT[:8]}")


@pytest.mark.whole
def test_covey_comes_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    where = run(environment, tmp_path, "python", "-c", "import covey; print(covey.__file__)")
    assert where.strip().startswith(str(environment.parent))


@pytest.mark.whole
@pytest.mark.parametrize(
    "command", sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
)
def test_each_command_starts(environment: Path, tmp_path: Path, command: str) -> None:
    shown = run(environment, tmp_path, command, "--help")
    assert (
        f"Covey {RELEASE}+g{COMMIT[:8]} has three programs"
        if command == "covey"
        else f"Usage: {command}"
    ) in shown


@pytest.mark.whole
def test_all_three_programs_work_together(environment: Path, tmp_path: Path) -> None:
    """The coordinator starts the broker and the fleet as programs of their own; the report needs the page's template."""
    scenario = ROOT / "scenarios" / "smoke.yaml"
    quick = ["--embedded", "--set", "fleet.workers=1"]
    run(environment, tmp_path, "coordinator", "run", str(scenario), *quick, "--out", "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["rounds"] > 0
    run(environment, tmp_path, "coordinator", "report", "out", "--html", "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.whole
def test_without_a_checkout_the_way_from_data_to_a_verdict_is_the_same(
    environment: Path, tmp_path: Path
) -> None:
    """The scenario is proposed, and its methods are compared on a fleet of the same data."""
    run(environment, tmp_path, "agent", "examples")
    wine = [f"--from=examples/wine/device-{number}.csv" for number in (1, 2, 3)]
    run(environment, tmp_path, "coordinator", "init", *wine, "--out", "wine.yaml")
    run(environment, tmp_path, "agent", "check", "--data", wine[0][7:], "--scenario", "wine.yaml")
    fleet = "fleet={agents: 3, data: ./examples/wine, partition: by_group, workers: 1}"
    short = ["--set", "rounds.count=1", "--set", fleet, "--in-process", "--out", "compared"]
    printed = run(environment, tmp_path, "coordinator", "compare", "wine.yaml", *short)
    assert "in use" in printed
    run(environment, tmp_path, "coordinator", "report", "compared")
    assert "<svg" in (tmp_path / "compared" / "report.html").read_text()


@pytest.mark.whole
def test_covey_ends_quietly_where_its_reader_has_closed_the_pipe(environment: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{environment}/covey' | true"], capture_output=True, check=True
    )
    assert done.stderr == b""


@pytest.mark.whole
def test_examples_travel_with_the_wheel(environment: Path, tmp_path: Path) -> None:
    printed = run(environment, tmp_path, "agent", "examples")
    assert files_below(tmp_path / "examples") == files_below(ROOT / "examples")
    assert "examples/wine/device-1.csv" in printed.splitlines()
