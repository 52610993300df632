"""A scenario with secure sums: its plan, what people see of it, its noise and account, and settings that are refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from covey.coordinator.view.lines import reduced
from covey.extras.dashboard.html_report import sums_table
from covey.extras.dashboard.sections import sections
from covey.extras.private.private_sums import epsilon
from covey.extras.runs.state import RunPlan, Sources, dashboard_state
from covey.extras.secure import secured as secured
from covey.extras.secure.tests.secure_run import SECURE, Watch, rows, run_with, scene, sums
from covey.shared.numerics.measures import OF_CLASSIFICATION
from covey.shared.scenario.compare import Metric
from covey.shared.scenario.scenario import Scenario
from tests.kit import small_run
from tests.kit.scenes import VECTORS
from tests.kit.small_run import fingerprint, in_process, scenario


def test_how_the_sum_of_each_group_ended_is_shown_to_people(tmp_path: Path) -> None:
    run_with(tmp_path, {("secure-unmask", 0): 5}, times=secured.ASKED_FOR_ANSWERS)
    why = "3 members answered, 5 must"
    assert "weight" not in sums(tmp_path)[0][0]
    table = sums_table(rows(tmp_path))
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ["1", "0", "passed over", why],
        ["2", "0", "sum", ""],
        ["2, evaluation", "0", "sum", ""],
    ]
    shown = [line for line in map(reduced, rows(tmp_path)) if line is not None]
    state = dashboard_state(Sources(RunPlan("r", "fedavg", 2, 8), lines=shown))
    assert [line.text for line in state.events if "secure sums" in line.text] == [
        f"secure sums: one of group 0 is passed over: {why}"
    ]
    tiles = re.sub("<[^>]*>", " ", sections(state)["tiles"]).split()
    assert tiles[-6:] == ["secure", "sums", "1", "of", "8", "agents"]


# -- noise -------------------------------------------------------------------------------------------------------------

NOISED = {"client": {"clip": 1.0, "noise_multiplier": 0.5, "delta": 1e-5}, "secure": {"clip": 1.0}}


def noised_scene(count: int = 2) -> Any:
    return scenario("fedavg", privacy=NOISED, rounds={"participation": 1.0, "count": count})


def test_agents_add_the_noise_of_client_level_privacy_and_the_account_counts_each_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch.of(monkeypatch)
    in_process(tmp_path / "run", noised_scene())
    assert watch.check(tmp_path / "run") == 2 + 1
    [one] = sums(tmp_path / "run")[0]
    assert (one["weight"], one["shortened"]) == (8, None)
    spent = [
        row["privacy"]["client"]["epsilon"] for row in rows(tmp_path / "run") if "privacy" in row
    ]
    assert spent[-1] == pytest.approx(epsilon([(0.5, 2)], 1e-5))
    # the mean has the noise of eight agents, of whom four alone make that of the account
    without = scene("fedavg", secure={"clip": 1.0, "cap": 1}, rounds={"count": 1})
    plain = in_process(tmp_path / "plain", without)
    noised = in_process(tmp_path / "once", noised_scene(1))
    noise = noised.models[0] - plain.models[0]
    assert noise.std() * 8 == pytest.approx(0.5 * np.sqrt(8 / 4), rel=0.5)
    assert fingerprint(in_process(tmp_path / "again", noised_scene(1))) == fingerprint(noised)


@pytest.mark.parametrize(
    ("phase", "times", "releases"),
    [("secure-unmask", 3, 1), ("train", 5, 0), ("train", 1, 1), ("secure-box", 1, 1)],
)
def test_the_account_counts_unmask_lists_and_no_sum_that_was_void(
    tmp_path: Path, phase: str, times: int, releases: int
) -> None:
    run = run_with(tmp_path, {(phase, 0): 6}, times=times, this=noised_scene(1))
    privacy = run.privacy
    assert privacy is not None
    assert max(privacy.ledger.sums.values(), default=0) == releases


def test_an_attempt_with_fewer_members_has_as_much_noise() -> None:
    """A vector is made once in a round, with its noise: the threshold rises where members are gone."""
    method = noised_scene().method
    whole = method.grouping.size(8, 0)
    assert (whole.threshold, whole.honest) == (5, 4)
    assert [method.grouping.size(members, whole.honest).honest for members in (8, 6, 5, 4)] == [
        4
    ] * 4
    assert method.grouping.size(3, whole.honest) is None


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sections", "words"),
    [
        ("ifca", {}, "leave out shared_trunk"),
        ("fedem", {}, "not for fedem: damped"),
        ("fedavg", {"privacy": {**NOISED, "secure": {"clip": 2.0}}}, "bound the same updates"),
        (
            "ifca",
            {"strategy": {"shared_trunk": False}, "privacy": NOISED},
            "sees which model each agent of ifca chooses",
        ),
        ("cfl", {}, "not for cfl: it needs single reports"),
        ("fedgwc", {}, "not for fedgwc: it needs single reports, or numbers of each"),
        ("fedavg", {"strategy": {"server": {"name": "sgd", "lr": 0.5}}}, "server"),
        ("fedavg", {"aggregation": {"rule": "median"}}, "aggregation.rule"),
        ("fedavg", {"wire": {"down": "float16"}}, "wire.down"),
        ("fedavg", {"evaluation": {"track": True}}, "evaluation.track"),
        ("fedavg", {"wire": {"codec": "int8"}}, "wire.codec"),
        ("fedavg", {"wire": {"delta": True}}, "wire.delta"),
        ("fedavg", {"aggregation": {"max_samples": {"share": 0.5}}}, "set privacy.secure.cap"),
        (
            "fedavg",
            {"task": {**VECTORS, "standardise": "federated"}},
            "write the values that are known",
        ),
    ],
)
def test_settings_that_need_single_reports_are_refused(
    method: str, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        scenario(method, **{"privacy": {"secure": SECURE}, **sections})


def accepted(**sections: Any) -> bool:
    """Whether a scenario under secure sums may have them."""
    judged = {"deliver": {}, **sections.pop("evaluation", {})}
    try:
        scene(evaluation=judged, **sections)
    except ValidationError as error:
        return "privacy.secure" not in str(error)
    return True


def test_no_figure_is_compared_that_the_sums_do_not_have() -> None:
    """Before: a run that was to stop by AUC never did, and its comparison was empty."""
    slots = scene(evaluation={"tune_epochs": 1, "deliver": {}}).method.slots
    for metric in get_args(Metric):
        measured = metric in slots.modes or metric == "global"  # of mode `server`
        compare = {"methods": ["fedavg"], "metric": metric}
        assert accepted(compare=compare) == measured
        own = [{"name": "fedavg", "metric": metric}]
        assert accepted(compare={"methods": own, "metric": "server"}) == measured
    every = {"evaluation": {"every": 1}}
    for name in OF_CLASSIFICATION:
        measured, stop = name in slots.names, {"metric": name, "patience": 1}
        assert accepted(rounds={"stop": stop}, **every) == measured
        task = {**VECTORS, "measure": name}
        assert accepted(rounds={"publish": "best"}, task=task, **every) == measured
        if name != "loss":  # no measure of comparisons
            compare = {"methods": ["fedavg"], "metric": "server", "measure": name}
            assert accepted(compare=compare) == measured


def test_under_secure_sums_devices_choose_what_they_use_as_in_any_other_run() -> None:
    this = small_run.judged("fedavg", privacy={"secure": SECURE})
    assert this.evaluation == small_run.judged("fedavg").evaluation
    assert this.evaluation.judges
    assert Scenario.model_validate(this.model_dump(mode="json")) == this


def test_a_scenario_without_secure_sums_keeps_its_section() -> None:
    noised = scenario("fedavg", privacy={"client": {"clip": 1.0}})
    assert noised.privacy is not None
    assert "secure" not in noised.privacy.model_dump()
    assert "secure" not in noised.privacy.for_agents(3)
