"""The larger real data sets, where this machine has them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from covey.agent.data import Dataset, find_root, load_named
from covey.agent.data.named import FILES


def data_root(name: str) -> Path:
    """The data root, if `name` lies there; otherwise the test skips."""
    root = find_root()
    if root is None or not (root / FILES[name]).exists():
        pytest.skip(
            f"needs the data set {name!r}: set COVEY_DATA_ROOT to a folder with {FILES[name]}"
        )
    return root


def real(name: str) -> Dataset:
    return _loaded(name, data_root(name))


@cache
def _loaded(name: str, root: Path) -> Dataset:
    return load_named(name, root)
