"""What another user of this machine can read, asked as that user; by the modes where nobody can be asked."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
is_root = os.geteuid() == 0


def read_by_others(place: Path) -> list[str]:
    """The names that another user of this machine can open below a folder that is open to all."""
    for folder in (place, *place.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    if not is_root:
        return _allowed_by_modes(place)
    found = subprocess.run(
        ["find", str(place), "-mindepth", "1", "-readable"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    return found.stdout.splitlines()


def _allowed_by_modes(place: Path) -> list[str]:
    def is_open(path: Path) -> bool:
        way = [one for one in path.parents if place in one.parents]
        return bool(path.stat().st_mode & stat.S_IROTH) and all(
            one.stat().st_mode & stat.S_IXOTH for one in way
        )

    return [str(path) for path in place.rglob("*") if is_open(path)]


@contextmanager
def masked(mask: int) -> Iterator[None]:
    """This process and those that it starts make their files with this mask: 0 leaves them open to all."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
