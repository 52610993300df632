"""What belongs to the worker process as a whole: its options, its parent, and the learner that it has loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from covey.agent.learning import load_learner
from covey.agent.policy import Rules


@dataclass(frozen=True)
class Options:
    """How a worker runs: a pool writes them on its command line, and the worker reads them there once."""

    threads: int = 1  # of the learner
    warm: bool = False  # loads torch before its first job
    verbose: bool = False  # prints tracebacks of errors on stderr
    allow: tuple[str, ...] = ()  # code of the owner's own that may be loaded

    def words(self) -> list[str]:
        """The command line."""
        allowed = [word for name in self.allow for word in ("--allow", name)]
        flags = [f"--{name}" for name in ("warm", "verbose") if getattr(self, name)]
        return ["--threads", str(self.threads), *flags, *allowed]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """The options in a command line; other words in it belong to whatever wraps the worker."""
        from argparse import ArgumentParser  # here, because a waiting agent needs none

        parser = ArgumentParser(allow_abbrev=False)
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--warm", action="store_true")
        parser.add_argument("--verbose", action="store_true")
        parser.add_argument("--allow", action="append", default=[])
        given, _ = parser.parse_known_args(words)
        return cls(given.threads, given.warm, given.verbose, tuple(given.allow))


def prepared(rules: Rules, threads: int = 1) -> None:
    """Load the libraries of this device's learner."""
    load_learner(rules.learner).prepare(threads)
