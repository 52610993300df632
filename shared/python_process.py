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
# Memory for contents of many megabytes then comes in large pages, where the C library is glibc and the kernel allows it.
# In pages of 4 kB a copy takes five times as long.
LARGE_PAGES = "glibc.malloc.hugetlb=1"
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
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **settings}


def worker_environment(threads: str) -> dict[str, str]:
    """The environment of a process that trains.

    Args:
        threads: the number of threads that numeric libraries may use.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", LARGE_PAGES)
    return environment(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, GLIBC_TUNABLES=tunables)
