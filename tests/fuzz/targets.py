"""The table of all targets."""

from __future__ import annotations

from functools import lru_cache

from tests.fuzz.file_targets import file_targets
from tests.fuzz.run_targets import report_target
from tests.fuzz.secure_targets import secure_targets
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import wire_targets

__all__ = ["targets"]


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """Every target by name."""
    found = [*wire_targets(), *secure_targets(), *file_targets(), report_target()]
    return {each.name: each for each in found}
