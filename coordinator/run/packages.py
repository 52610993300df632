"""The versions of the packages that a run was made with."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable
from importlib import metadata


def versions() -> dict[str, str]:
    """What the figures were made with."""
    wanted = ("covey", "numpy", "scipy", "scikit-learn", "torch", "aiomqtt", "msgpack")
    found = {"python": platform.python_version(), "machine": platform.machine()}
    return found | installed_versions(wanted)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed here: a coordinator needs no torch."""
    found: dict[str, str] = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
