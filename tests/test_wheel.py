"""The wheel, in an environment of its own, next to packages that have taken the names `agent` and `shared`."""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.processes

SOURCES = ("agent", "broker", "coordinator", "examples", "shared", "src")
FILES = ("pyproject.toml", "README.md", "LICENSE")
FOREIGN = "raise ImportError('this package belongs to somebody else')\n"


def pip(*arguments: str, python: str = sys.executable) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has Covey's wheel, and the libraries of ours by a path."""
    work = tmp_path_factory.mktemp("wheel")
    tree = work / "tree"
    tree.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(tree))
    home = work / "env"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (wheel,) = work.glob("covey-*.whl")
    pip("install", "--no-deps", "--no-index", str(wheel), python=str(python))
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
        env={"PATH": str(environment), "HOME": str(folder)},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_covey_comes_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    where = run(environment, tmp_path, "python", "-c", "import covey; print(covey.__file__)")
    assert where.strip().startswith(str(environment.parent))


@pytest.mark.parametrize("command", ["agent", "broker", "coordinator"])
def test_each_command_starts(environment: Path, tmp_path: Path, command: str) -> None:
    assert f"Usage: {command}" in run(environment, tmp_path, command, "--help")


def test_all_three_programs_work_together(environment: Path, tmp_path: Path) -> None:
    """The coordinator starts the broker and the fleet as programs of their own; the report needs the page's template."""
    scenario = ROOT / "scenarios" / "smoke.yaml"
    quick = ["--embedded", "--set", "fleet.workers=1"]
    run(environment, tmp_path, "coordinator", "run", str(scenario), *quick, "--out", "out")
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["rounds"] > 0
    run(environment, tmp_path, "coordinator", "report", "out", "--html", "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_types_travel_with_the_wheel(environment: Path) -> None:
    (package,) = environment.parent.glob("lib/python*/site-packages/covey")
    assert (package / "py.typed").exists()


def test_examples_travel_with_the_wheel(environment: Path, tmp_path: Path) -> None:
    printed = run(environment, tmp_path, "agent", "examples", "--out", "mine")
    (package,) = environment.parent.glob("lib/python*/site-packages/covey")
    for folder in (package / "examples", tmp_path / "mine"):
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        found = {path.relative_to(folder) for path in files}
        assert found == {Path(name) for name in example_files()}
    assert "mine/wine/device-1.csv" in printed.splitlines()


def example_files() -> list[str]:
    source = ROOT / "examples"
    return [
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
