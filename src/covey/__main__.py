"""`covey`: names the three programs, for people who have installed it and look for a command of that name."""

from __future__ import annotations

PROGRAMS = """\
Covey has three programs:

  agent        on each device: trains on its data
  coordinator  invites agents, averages, compares methods; begin with `coordinator init`
  broker       carries their messages; begin with `broker up`

Each lists its commands with --help."""


def main() -> None:
    """Print the list."""
    print(PROGRAMS)


if __name__ == "__main__":
    main()
