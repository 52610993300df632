"""Small real data sets that come with Covey, each divided among three devices. `examples/README.md` names their sources."""

from __future__ import annotations

import shutil
from pathlib import Path

from covey.shared.errors import UserError
from covey.shared.python_process import PACKAGE

EXAMPLES = PACKAGE / "examples"  # in a checkout a link to its folder `examples`


def copy_examples(folder: Path) -> list[Path]:
    """Copy all examples into a new folder.

    Returns:
        The data of each device, sorted: values for `agent start --data`.

    Raises:
        UserError: the folder exists, or this installation has no examples.
    """
    if not EXAMPLES.is_dir():
        raise UserError(f"{EXAMPLES} does not exist: install Covey again")
    if folder.exists():
        raise UserError(f"{folder} exists already; choose another folder with --out")
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return sorted(folder.glob("*/device-*"))
