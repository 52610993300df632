"""Which Covey this is: the release, and in a checkout the commit, as `0.1.0+g39dd8b55`.

A wheel has the version of the state that it was built from. A checkout reads its commit from git's files, without the
program, when the version is first asked for: what is not committed does not show. A build imports this module by itself,
so it imports nothing of Covey.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

RELEASE = "0.1.0"
COMMIT_DIGITS = 8


@cache
def version() -> str:
    """The version of the program that runs here; the release alone where nothing else is known."""
    here = Path(__file__).resolve().parent.parent.parent
    commit = _commit(here)
    if commit:
        return f"{RELEASE}+g{commit[:COMMIT_DIGITS]}"
    for root in (here, here.parent.parent):  # of an unpacked source archive
        if (root / "pyproject.toml").is_file() and (root / "PKG-INFO").is_file():
            return _of_archive(root / "PKG-INFO")
    try:
        return metadata.version("covey")
    except metadata.PackageNotFoundError:
        return RELEASE


def _of_archive(info: Path) -> str:
    for line in info.read_text().splitlines():
        if line.startswith("Version: "):
            return line.removeprefix("Version: ").strip()
    return RELEASE


def _commit(root: Path) -> str:
    """The commit that is checked out in a folder; empty where there is none, or git keeps it in another way."""
    git = root / ".git"
    try:
        if git.is_file():  # of a further worktree
            git = root / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        further = git / "commondir"
        common = git / further.read_text().strip() if further.is_file() else git
        loose = common / branch
        if loose.is_file():
            return loose.read_text().strip()
        for line in (common / "packed-refs").read_text().splitlines():
            if line.endswith(f" {branch}"):
                return line.partition(" ")[0]
    except OSError:
        pass
    return ""
