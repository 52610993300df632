"""`python -m tests.fuzz.coverage_guided message.order --seconds 60`: inputs that libFuzzer chooses by the code they reach.

Optional: it needs `pip install atheris`, and is for targets whose inputs are bytes. New inputs begin as the valid samples
and their mutations; an input that crashes is written to the working directory by libFuzzer.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

SEEDS = 200  # inputs of our own that the search begins with


def main(
    name: Annotated[
        str, typer.Argument(help="a target of `python -m tests.fuzz`, such as message.order")
    ],
    seconds: Annotated[int, typer.Option(help="how long to search")] = 60,
) -> None:
    """Search for inputs that crash one target, guided by coverage."""
    try:
        import atheris
    except ImportError:
        sys.exit("coverage-guided fuzzing needs atheris: pip install atheris")
    with atheris.instrument_imports(
        include=[
            "shared",
            "covey.agent.data",
            "covey.agent.device.session",
            "broker",
            "coordinator",
        ]
    ):
        from tests.fuzz.campaign import one, rng_of
        from tests.fuzz.targets import target
    this = target(name)
    with tempfile.TemporaryDirectory(prefix="covey-fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for index in range(SEEDS):
            data = this.make(rng_of(1, name, index))
            if not isinstance(data, bytes):
                sys.exit(
                    f"the inputs of {name} are no bytes: run it with `python -m tests.fuzz --only {name}`"
                )
            (corpus / str(index)).write_bytes(data)
        work = Path(folder) / "work"
        work.mkdir()
        run = this.ready(work)

        def try_one(data: bytes) -> None:
            _, crash = one(this, run, data)
            if crash is not None:
                raise AssertionError(f"{crash.what} in {crash.where}")

        atheris.Setup([sys.argv[0], str(corpus), f"-max_total_time={seconds}"], try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    typer.run(main)
