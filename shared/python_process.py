"""How a program of ours starts another one: with our own code on its path, and never with what lies in the working directory.

`python -m` puts the working directory first on the import path, so a file `torch.py` that somebody left there would run as
whoever starts a coordinator or an agent there. `python -P` leaves it out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import covey

HOME = Path(
    covey.__file__
).parent.parent  # the folder that holds our package: that of a checkout, or of installed packages


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs one of our modules."""
    return (sys.executable, "-P", "-m", module, *arguments)


def environment(**settings: str) -> dict[str, str]:
    """Our environment with `settings` laid over it, in which a child finds our code wherever it was started from.

    An empty word in PYTHONPATH stands for the working directory: there is none in a child's.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = dict.fromkeys([str(HOME), *filter(None, inherited)])
    path = os.pathsep.join(places)
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **settings}
