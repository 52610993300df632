"""The table of all targets."""

from __future__ import annotations

from functools import lru_cache

from tests.fuzz.file_targets import file_targets
from tests.fuzz.run_targets import report_target
from tests.fuzz.secure_targets import secure_targets
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import wire_targets

__all__ = ["Target", "target", "targets"]


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """Every target by name."""
    found = [*wire_targets(), *secure_targets(), *file_targets(), report_target()]
    return {each.name: each for each in found}


def target(name: str) -> Target:
    """The target of this name. Raises KeyError."""
    return targets()[name]


def shares(inputs: int, only: tuple[str, ...] = ()) -> dict[str, int]:
    """How many of the inputs each target gets: whole numbers that sum up to `inputs`. `only`: parts of names, or all."""
    chosen = [
        each for each in targets().values() if not only or any(word in each.name for word in only)
    ]
    total = sum(each.share for each in chosen)
    counts = {each.name: int(inputs * each.share / total) for each in chosen}
    counts[chosen[0].name] += inputs - sum(counts.values())
    return counts
