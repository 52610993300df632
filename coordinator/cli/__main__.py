"""The program as a module: `python -m covey.coordinator.cli`."""

from covey.coordinator.cli import main

if __name__ == "__main__":
    main()
