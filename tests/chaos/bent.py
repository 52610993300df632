"""`python -m tests.chaos.bent NAME=VALUE ... -- MODULE WORDS`: one of our programs whose machine or version is not as it should be."""

from __future__ import annotations

import sys
import time
from importlib import import_module


def bend(name: str, value: str) -> None:
    """Change what the program takes from its machine, before it imports any of it."""
    match name:
        case "clock":  # seconds ahead
            now, ahead = time.time, float(value)
            time.time = lambda: now() + ahead
        case "version":
            import_module("covey.shared.programs.version").version = lambda: value  # type: ignore[attr-defined]
        case "format":
            import_module("covey.shared.wire.format").FORMAT = int(value)  # type: ignore[attr-defined]
        case _:
            raise SystemExit(f"{name}: expected clock, version or format")


def main() -> None:
    """Bend, and run the program."""
    place = sys.argv.index("--")
    for word in sys.argv[1:place]:
        bend(*word.split("=", 1))
    module, *words = sys.argv[place + 1 :]
    sys.argv = [module, *words]
    sys.exit(import_module(module).main())


if __name__ == "__main__":
    main()
