"""`covey`: names the three programs, for people who have installed it and look for a command of that name."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from covey.shared.programs.version import version

PROGRAMS = """\
Covey {version} has three programs:

  agent        on each device: trains on its data
  coordinator  invites agents and averages; begin with `coordinator init`
  broker       carries their messages; begin with `broker up`

Each lists its commands with --help."""


def main() -> None:
    """Print the list. A reader such as `head` may have closed the pipe."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{PROGRAMS.format(version=version())}\n".encode())


if __name__ == "__main__":
    main()
