"""The program as a module: `python -m covey.agent.cli`."""

from covey.agent.cli import main

if __name__ == "__main__":
    main()
