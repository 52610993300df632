"""What belongs to the worker process as a whole: its options, its parent, the learner that it has loaded, and the limits
on its memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from covey.agent.learner_choice import TORCH
from covey.agent.policy import TAKES_MORE, OwnersRules, Policy, PolicyError
from covey.agent.worker.learners import load_library


@dataclass(frozen=True)
class WorkerOptions:
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


def prepared(rules: OwnersRules, threads: int = 1) -> None:
    """Load the libraries of this device's learner."""
    load_library(rules.learner).prepare(threads)


# -- the owner's limits on memory ------------------------------------------------------------------


@contextlib.contextmanager
def memory_limited(rules: OwnersRules, threads: int | None) -> Iterator[None]:
    """Limit the data memory of this process while it works. Linux only.

    RLIMIT_DATA counts what a process writes to. RLIMIT_AS would count the address space, too, of which torch reserves
    many times what it uses.

    Args:
        rules: `max_memory_mb` comes on top of the learner's libraries and our own code, `memory_limit_mb` includes them.
        threads: load the learner with this many before the limit applies, so that a lack of memory has a name and not a
            traceback from inside torch. None: the work needs no learner.

    Raises:
        PolicyError: the work ran out of memory, or the learner alone takes more than the limit.
    """
    policy = rules.policy
    has_limit = policy.memory_limit_mb is not None or (threads is not None and policy.max_memory_mb)
    if not has_limit or sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own_bytes = 0
    if threads is not None:
        prepared(rules, threads)
        own_bytes = _own_data_bytes()
    limit_bytes, rule = strictest_limit(policy, own_bytes, rules.learner)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    try:
        yield
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        raise PolicyError(
            f"policy of this device: {rule}: {TAKES_MORE} {getattr(policy, rule)} MB"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def strictest_limit(policy: Policy, own_bytes: int, learner: str = TORCH) -> tuple[int, str]:
    """The lower one of the limits in bytes, and its key in the policy.

    Args:
        policy: has at least one of the two limits.
        own_bytes: data memory of the learner and our code; 0 if they are not imported yet, and then not limited.
        learner: its name, for the message.

    Raises:
        PolicyError: the learner and our code leave nothing of the limit, or the only limit counts from their memory,
            which this system does not report.
    """
    limits: list[tuple[int, str]] = []
    if policy.max_memory_mb is not None and own_bytes:
        limits.append((own_bytes + (policy.max_memory_mb << 20), "max_memory_mb"))
    if policy.memory_limit_mb is not None:
        if own_bytes >= policy.memory_limit_mb << 20:
            raise PolicyError(
                f"policy of this device: memory_limit_mb: {learner} alone takes {own_bytes >> 20} MB of the allowed "
                f"{policy.memory_limit_mb} MB"
            )
        limits.append((policy.memory_limit_mb << 20, "memory_limit_mb"))
    if not limits:
        raise PolicyError(
            "policy of this device: max_memory_mb: this system does not report the memory of a process (VmData in "
            "/proc/self/status); set memory_limit_mb instead"
        )
    return min(limits)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether this error, or one that caused it, is a lack of memory."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, RuntimeError) and "memory" in str(error):  # torch raises no other type
            return True
        error = error.__cause__ or error.__context__
    return False


@cache
def _own_data_bytes() -> int:
    """The data memory of this process in bytes, before its first work and with all imports done. 0 if unknown."""
    import covey.shared.work.execute  # noqa: F401

    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    return 0
