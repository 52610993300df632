"""What `coordinator lab forget` leaves: what needs `secure`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.coordinator.engine.events import Forget
from covey.extras.secure.progress import Progress, SealedState, SummedFigures
from tests.coordinator.test_forget import GONE, run_of
from tests.kit.traces import traces


def test_the_state_of_secure_sums_names_no_agent_that_was_forgotten(tmp_path: Path) -> None:
    run = run_of(tmp_path, "secure")
    both = [GONE, "agent-2"]
    named: dict[str, Any] = {
        "blamed": [*both],
        "standing": {"0": {"bound": [*both], "members": [*both]}},
        "ends": [{"cluster": "0", "reported": [*both]}],
        "figures": SummedFigures(groups=[[*both]]),
    }
    run.state = SealedState(run.state.inner, Progress(**named))
    of_sums = {f"Progress.{name}" for name in named if name != "figures"}
    assert traces(run.state, GONE) == {*of_sums, "SummedFigures.groups"}
    run.handle(Forget(GONE), 1.0)
    assert traces(run.state, GONE) == set()
    assert tuple(run.state.progress.blamed) == ("agent-2",)
