"""A few of the small secure runs under kills: `python -m tests.simulator.secure_chaos` plays hundreds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.simulator.flaws import without
from tests.simulator.secure_chaos import ENDS, KINDS, play


def test_sums_are_right_or_passed_over_with_a_reason_whatever_is_killed(tmp_path: Path) -> None:
    struck: Counter[str] = Counter()
    for seed in range(3):
        chaos = play(seed, tmp_path / str(seed))
        assert chaos.failures == []
        struck += chaos.struck
    assert not [kind for kind in (*KINDS, ENDS[0]) if not struck[kind]]


def test_a_run_with_a_flaw_fails(tmp_path: Path) -> None:
    """Masks that stay in a sum are seen, once a member is missing."""
    with without("masks of the missing"):
        assert play(1, tmp_path).failures
