"""The display shows text from agents, files and brokers literally, never as markup: what needs `dashboard` and `runs`."""

from __future__ import annotations

from covey.coordinator.report.tables import results
from covey.coordinator.view.printed import framed
from covey.extras.dashboard.run_facts import device_words
from covey.extras.runs.roster_table import roster_table
from tests.coordinator.test_display import FINE, console, result


def test_one_is_not_many() -> None:
    alone = result(agents=1)
    assert results([alone]).title.startswith("heat, 1 agent;")
    plain, text = console()
    plain.print(framed(roster_table({"run": "r", "agents": {"pi-1": FINE}})))
    assert "run r: 1 agent " in text.getvalue()
    counts = {"CPU": 1, "GPU": 2}
    assert device_words({"devices": counts, "versions": {}}) == "CPU (1 agent), GPU (2 agents)"
