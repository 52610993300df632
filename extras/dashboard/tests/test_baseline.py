"""A run's figures next to the answer that needs no model: what needs `dashboard`."""

from covey.extras.dashboard.figure_pictures import CURVES
from covey.extras.dashboard.html_report import shown_modes
from tests.coordinator.test_baseline import with_modes


def test_a_page_leaves_e_delivered_out_where_no_agent_has_a_judge() -> None:
    result = {**with_modes(server=0.9, tuned=0.8, delivered=0.9), "never_trained": []}
    assert list(shown_modes(result)) == ["server", "tuned"]
    uses = {"pi-1": {"served": 1.0}}
    assert list(shown_modes({**result, "uses": uses})) == ["server", "delivered", "tuned"]
    assert "delivered" not in CURVES
