"""How a program of ours starts another one: with our code on its path, and nothing from the working directory.

`python -m` puts the working directory first on the import path. A file `torch.py` that somebody left there would then
run as the user who starts a coordinator or an agent there. `python -P` leaves the working directory out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import covey

PACKAGE = Path(covey.__file__).parent
HOME = PACKAGE.parent  # the folder with our package: a checkout's src, or the installed packages


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs one of our modules."""
    return (sys.executable, "-P", "-m", module, *arguments)


def environment(**settings: str) -> dict[str, str]:
    """The environment of a child process: ours, with `settings`, and a path on which it finds our code.

    An empty entry of PYTHONPATH stands for the working directory, so empty entries are removed.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(HOME)]
    folders += [folder for folder in inherited if folder]
    path = os.pathsep.join(dict.fromkeys(folders))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONSAFEPATH": "1",
        **settings,
    }
