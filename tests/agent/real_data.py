"""The larger real data sets, where this machine has them: as .npz, or as published, of which an .npz is made once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from covey.agent.data import Dataset
from covey.agent.data.named import MADE_OF, find_root, load_named
from covey.shared.storage.files import atomic_replace
from tests.processes import ROOT

CACHE = Path(tempfile.gettempdir()) / f"covey-real-data-{os.getuid()}"


def data_root(name: str) -> Path:
    """A data root with `name`; without it the test skips."""
    root, file = find_root(), f"{name if name in MADE_OF else name.replace('-', '_')}.npz"
    if root is None:
        pytest.skip(f"needs the data set {name!r}: set COVEY_DATA_ROOT")
    if (root / file).exists():
        return root
    kind, _, source = MADE_OF.get(name, "").partition(" ")
    if not source or not (root / source).exists():
        pytest.skip(f"needs the data set {name!r}: no {file} and no {source} in {root}")
    if not (CACHE / file).exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        script = str(ROOT / "scripts" / "to_npz.py")
        with atomic_replace(CACHE / file, mark=str(os.getpid())) as made:
            command = [sys.executable, script, kind, str(root / source), f"{made}.npz"]
            subprocess.run(command, check=True, capture_output=True)
            Path(f"{made}.npz").rename(made)
    return CACHE


def real(name: str) -> Dataset:
    return _loaded(name, data_root(name))


@cache
def _loaded(name: str, root: Path) -> Dataset:
    return load_named(name, root)
