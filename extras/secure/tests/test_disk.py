"""Spool and checkpoint: what needs `secure`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.extras.secure.progress import GroupSum, Progress, SealedState, SummedFigures
from covey.shared.errors import UserError
from tests.coordinator.test_disk import same, state, vector


def test_a_state_in_a_state_keeps_its_kind_and_a_strange_key_in_it_is_another_versions(
    tmp_path: Path,
) -> None:
    one = GroupSum("0", ("a", "b", "c"), 3, contents={"total": vector(1, 2)})
    sealed = SealedState(state(), Progress(sums=(one,), figures=SummedFigures(groups=(("a",),))))
    for found in (Checkpoint(tmp_path).save({}, sealed), Checkpoint(tmp_path).state(sealed)):
        assert same(found.inner, sealed.inner)
        assert (found.progress.sums[0].members, found.progress.figures) == (
            one.members,
            sealed.progress.figures,
        )
    for older in (state(), SealedState(one)):
        Checkpoint(tmp_path).save({}, older)
        with pytest.raises(UserError, match="was begun with"):
            Checkpoint(tmp_path).state(sealed)
