"""The program as a module: `python -m covey.broker.cli`."""

from covey.broker.cli import main

if __name__ == "__main__":
    main()
