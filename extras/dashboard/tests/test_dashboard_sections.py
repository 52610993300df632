"""The sections of the dashboard's page that the server draws: what they show follows from the state alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.coordinator.view.lines import reduced
from covey.extras.dashboard.sections import sections
from covey.extras.runs.state import RunPlan, Sources, dashboard_state
from covey.shared.wire.documents import RosterMessage
from tests.coordinator.dashboards import agents, phase, status
from tests.night import examples

PLAN = RunPlan(name="pilot", method="fedclust", rounds=20, agents=10, evaluates_every=1)
HOSTILE = "</li><script>hacked = '&\"'</script>"


def drawn(*rows: Mapping[str, Any], **sources: Any) -> dict[str, str]:
    lines = [line for line in map(reduced, rows) if line is not None]
    return sections(dashboard_state(Sources(PLAN, lines, **sources)))


def words(html: str) -> str:
    """The text of a section, as a person reads it."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def drawings(html: str) -> list[str]:
    return re.findall(r"<svg [^>]*role=.*?</svg>", html, re.DOTALL)


def values(html: str) -> list[str]:
    """What the pointer shows, from the left to the right."""
    [found, *_] = re.findall(r'data-values="(.*?)"', html)
    return [text for _, text in json.loads(unescape(found))]


def test_a_chart_has_the_figures_of_all_agents_and_of_each_cluster() -> None:
    figures = {"0": {"accuracy": 0.25}, "12": {"accuracy": 0.75}}
    before, newest = phase(1, evaluated=0.25), phase(2, evaluated=0.5, by_cluster=figures)
    made = drawn(phase(1), before, newest)["chart-figure"]
    shown = words(made)
    assert shown.startswith("Accuracy served by group accuracy in %")
    assert "all agents 50.0 %" in shown
    assert "group 0 25.0 %" in shown
    assert "group 12 75.0 %" in shown
    assert values(made)[1:] == ["after round 2: all agents 50.0 %, group 0 25.0 %, group 12 75.0 %"]
    assert len(drawings(made)) == 2, "one for a desk, one for a phone"


def test_a_run_of_which_the_broker_keeps_one_phase_has_bars_and_sentences_and_no_single_dots() -> (
    None
):
    figures = {"0": {"accuracy": 0.25}, "1": {"accuracy": 0.75}}
    made = drawn(phase(9, evaluated=0.5, by_cluster=figures))
    shown = words(made["chart-figure"])
    assert shown.startswith("Accuracy served by group, after round 9")
    assert "group 0 25.0 %" in shown
    assert len(drawings(made["chart-figure"])) == 2
    others = [made[name] for name in ("chart-loss", "chart-reports", "chart-traffic")]
    assert [len(drawings(other)) for other in others] == [0, 0, 0]
    assert "After round 9: to agents" in words(made["chart-traffic"])


def test_the_first_tile_has_the_figure_and_its_change() -> None:
    first, second = phase(1, evaluated=0.5), phase(2, evaluated=0.625)
    assert "mean accuracy served 50.0 % after round 1" in words(drawn(phase(1), first)["tiles"])
    shown = words(drawn(phase(1), first, phase(2), second)["tiles"])
    assert shown.startswith("mean accuracy served 62.5 % +12.5 points, after round 2")


def test_the_log_has_rounds_and_evaluations_the_newest_first() -> None:
    made = drawn(phase(1, missing=[]), phase(1, evaluated=0.5, missing=[]))
    first, second = re.findall(r"<li>(.*?)</li>", made["events"])
    assert "mean accuracy served 50.00 %" in words(first)
    assert "reports" in words(second)


def test_a_curve_of_a_broker_that_was_asked_late_begins_at_its_first_round() -> None:
    early = drawn(phase(1), phase(2))["chart-loss"]
    late = drawn(phase(40), phase(41), phase(42))["chart-loss"]
    assert ">0</text>" in early
    assert [">10</text>" in late, ">42</text>" in late] == [False, True]
    assert values(late) == [
        f"after round {number}: loss {1 / number:.3g}" for number in (40, 41, 42)
    ]


def test_reports_are_columns_that_name_their_phase() -> None:
    made = drawn(phase(1), phase(1, evaluated=0.5, missing=[]))["chart-reports"]
    assert values(made) == [
        "train, after round 1: reported 2, missing 1",
        "evaluate, after round 1: reported 2",
    ]
    assert words(made).endswith("reported missing")


def test_traffic_has_the_unit_that_suits_it() -> None:
    large = {"wire_up": 3_000_000, "wire_down": 500_000, "down_models": 0}
    made = drawn(phase(1), phase(2, traffic=large))["chart-traffic"]
    assert words(made).startswith("Traffic so far MB 0")
    assert values(made)[-1] == "after round 2: to agents 500 kB, from agents 3 MB"


def test_traffic_without_a_broker_is_that_of_models_and_reports() -> None:
    simulated = {"down_vectors": 500, "down_models": 2_100, "up_vectors": 250}
    made = drawn(phase(1), phase(2, traffic=simulated))["chart-traffic"]
    assert values(made)[-1] == "after round 2: to agents 2.1 kB, from agents 1 kB"


@pytest.mark.parametrize(
    ("every", "text"),
    [(1, "No evaluation yet."), (0, "To see figures earlier, set evaluation.every.")],
)
def test_an_empty_chart_explains_itself(every: int, text: str) -> None:
    state = dashboard_state(Sources(replace(PLAN, evaluates_every=every)))
    made = sections(state)
    assert text in words(made["chart-figure"])
    assert "No training round yet." in words(made["chart-loss"])
    assert drawings("".join(made.values())) == []


def test_tiles_show_the_newest_figures_who_is_here_and_what_went_wrong() -> None:
    rows = agents(5, busy=True)
    rows["agent-1"] |= {"online": False}
    rows["agent-2"] |= {"quarantined": "not finite"}
    roster = RosterMessage(run="r1", agents=rows, refusals={"size": 1, "rate": 12})
    made = drawn(phase(1), phase(1, evaluated=0.5), roster=roster)
    assert words(made["tiles"]) == (
        "mean accuracy served 50.0 % after round 1 agents here 3 of 10 1 offline, 1 in quarantine "
        "groups 2 0 agents moved traffic 3 kB 2 kB to agents "
        "missing reports 2 no step was repeated refused messages 13 rate 12, size 1"
    )
    large = RosterMessage(run="r1", agents=agents(10_000))
    assert "agents here 10000 of 10000; 0 busy" in words(drawn(roster=large)["tiles"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"state": "open", "phase": "train", "round": 1},
            "running round 1 of 20 is over · now: train",
        ),
        ({"state": "paused", "round": 3}, "no new one starts. Round 3 of 20."),
        ({"state": "finished", "round": 20}, "finished Finished after 20 rounds."),
    ],
)
def test_the_headline_is_a_sentence(changes: dict[str, Any], text: str) -> None:
    roster = RosterMessage(run="r1", agents=agents(10))
    assert text in words(drawn(status=status(**changes), roster=roster)["progress"])


def test_text_of_others_is_never_read_as_html() -> None:
    rows = [
        phase(1, phase=HOSTILE, evaluated=None, notes={"warning": HOSTILE}),
        phase(1, evaluated=0.5, by_cluster={HOSTILE: {"accuracy": 0.5}}),
        {"event": "void", "round": 1, "step": 3, "why": HOSTILE},
    ]
    roster = RosterMessage(run="r1", agents=agents(2), refusals={HOSTILE: 3})
    found = status(name=HOSTILE, state="open", phase=HOSTILE, round=1)
    made = drawn(*rows, roster=roster, status=found)
    whole = "".join(made.values())
    assert whole.count(HOSTILE) == 0
    assert "<script" not in whole
    for name in ("head", "progress", "tiles", "chart-figure", "chart-reports", "events"):
        assert "&lt;script&gt;" in made[name], name
    for drawing in drawings(whole):
        ElementTree.fromstring(drawing)  # noqa: S314 - our own
    assert " style=" not in whole  # the policy would drop it
    assert " on" not in re.sub(r">[^<]*<", "><", whole), "no attribute is a handler"


NUMBERS = st.floats() | st.integers() | st.sampled_from([1e308, -1e308, 5e-324, 10**400, 0])


@settings(max_examples=examples(20), deadline=None)
@given(found=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=4))
def test_any_numbers_of_a_record_can_be_drawn(found: list[tuple[Any, Any, Any, Any]]) -> None:
    rows: list[Mapping[str, Any]] = []
    for loss, figure, number, count in found:
        changes: dict[str, Any] = {"loss": loss, "round": number, "seconds": count}
        changes["traffic"] = {"wire_up": count, "wire_down": number, "down_models": loss}
        changes["by_cluster"] = {"0": {"rmse": loss}, "x": {"rmse": count}}
        changes["evaluation"] = {"server": {"rmse": {"macro": figure}}}
        rows.append(phase(1, **changes))
    for drawing in drawings("".join(drawn(*rows).values())):
        assert "nan" not in drawing
        ElementTree.fromstring(drawing)  # noqa: S314 - our own
