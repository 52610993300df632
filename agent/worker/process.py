"""What belongs to the worker process as a whole: its command line, its parent, and the learner that it has loaded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from itertools import pairwise

from covey.agent.learning import Learner, load_learner
from covey.agent.policy import Rules


def words_after(option: str, words: Sequence[str]) -> list[str]:
    """The value of each occurrence of an option that takes one."""
    return [value for word, value in pairwise(words) if word == option]


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends. On other systems than Linux, stdin closes instead."""
    if sys.platform == "linux":
        import ctypes
        import signal

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def prepared(rules: Rules) -> Learner:
    """The learner of this device, with its libraries loaded."""
    learner = load_learner(rules.learner, rules.allowed)
    learner.prepare(threads())
    return learner


def threads() -> int:
    """The number of threads that the command line chose; 1 without a choice."""
    chosen = words_after("--threads", sys.argv)
    return int(chosen[-1]) if chosen else 1
