"""Runs under secure sums: the bytes of plain integer sums, also where agents fail or programs are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.run.result import per_agent, result_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.kin.tests import test_strategy_kin
from covey.extras.papers import flux
from covey.extras.secure import phases
from covey.extras.secure import secured as secured
from covey.extras.secure.grouping import Grouping
from covey.extras.secure.tests.secure_run import (
    OPTIONS,
    SECURE,
    Failing,
    Watch,
    all_sums,
    begun,
    ended,
    ends,
    rows,
    run_with,
    scene,
    sums,
)
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import COUNTED
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.small_run import fingerprint, in_process, samples_of, scenario
from tests.methods import of_each_kind

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The bytes of the usual run."""
    return fingerprint(in_process(tmp_path_factory.mktemp("whole"), scene()))


LATER = {"flux", "fedrep", "fedbabu"}  # work of the second round differs from that of the first
SEALED = [name for name, method in BUILT_IN.items() if method.facts.sealed is not None]


@pytest.mark.parametrize("method", of_each_kind("secure sums", SEALED))
def test_a_secure_run_has_the_sums_of_plain_integers_and_the_clusters_of_the_run_without(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flux, "WARMUP_ROUNDS", 1)
    watch = Watch.of(monkeypatch)
    if method == "flux":  # its clusters are too small for a sum
        monkeypatch.setattr("covey.extras.papers.flux._knee", lambda apart: 99.0)
    rounds = {"count": 2 if method in LATER else 1}
    changes: Any = {"strategy": OPTIONS.get(method, {}), "rounds": rounds}
    masked = in_process(tmp_path / "masked", scene(method, **changes))
    assert watch.check(tmp_path / "masked") == sum(map(len, all_sums(tmp_path / "masked"))) >= 2
    changes["rounds"]["participation"] = 1.0
    plain = in_process(tmp_path / "plain", scenario(method, **changes))
    assert masked.strategy.assignment(masked.state) == plain.strategy.assignment(plain.state)
    for ours, theirs in zip(masked.models, plain.models, strict=True):
        assert np.allclose(ours, theirs, atol=1e-4)


def test_the_votes_of_kin_under_secure_sums_are_those_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents take their own part off an average; the coordinator does not know how large it is."""
    watch = Watch.of(monkeypatch)
    votes = []
    none: dict[str, Any] = {}
    for changes in (none, {"privacy": {"secure": {"clip": 100.0, "cap": 1000}}}):
        folder, kin = tmp_path / str(len(changes)), test_strategy_kin.scene(4, **changes)
        run = test_strategy_kin.complete(folder, test_strategy_kin.swapped, kin)
        assert getattr(run.state, "inner", run.state).basis == "inputs"
        found = run.strategy.shown(run.state).notes["votes"]
        assert len(found) == (1 if changes else 2), "under secure sums an agent votes once"
        votes.append(found["inputs"])
    assert watch.check(tmp_path / "1") >= 5
    assert votes[0] == pytest.approx(votes[1], rel=1e-3)


def test_an_agent_keeps_its_model_as_it_counted_if_its_update_was_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch.of(monkeypatch)
    this = scene(secure={"clip": 0.1}, rounds={"count": 1})
    driver = small_run.driver(tmp_path, this)
    driver.complete(samples_of(small_run.clients()))
    [start] = small_run.setup(this).starts
    for agent, integers in watch.opened[0][1].items():
        counted = driver.clients.memories[agent][COUNTED] - start
        values, weight = integers[:-2].view(np.int32), integers[-2]
        unit = SECURE["cap"] * 0.1 / 2**24
        assert np.allclose(counted, values * unit / weight, atol=1e-6)
        assert np.linalg.norm(counted) == pytest.approx(0.1)


def test_several_groups_have_the_bytes_of_one(tmp_path: Path) -> None:
    one = fingerprint(in_process(tmp_path / "one", scene(secure={"group": 8})))
    # the scale follows from the largest group: 2**24 for both
    two = fingerprint(in_process(tmp_path / "two", scene(secure={"group": 4})))
    assert one == two
    assert ends(tmp_path / "two")[0][:2] == ["sum", "sum"]


@pytest.mark.parametrize("phase", ["secure-box", "secure-join", "train", "secure-unmask"])
def test_members_that_fail_in_a_phase_are_missing_from_its_sum_alone(
    tmp_path: Path, phase: str
) -> None:
    run_with(tmp_path, {(phase, 0): 2, (phase, 1): 1})
    found = ends(tmp_path)
    assert [end[0] for end in found] == ["sum"] * 2
    members = 8 if phase == "secure-unmask" else 6
    assert len(sums(tmp_path)[0][0]["reported"]) == members


@pytest.fixture
def one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who are free are one group, however few."""
    monkeypatch.setattr(Grouping, "_blocks", lambda _, clients: [sorted(clients)])


@pytest.mark.usefixtures("one_group")
def test_a_model_whose_sum_was_answered_and_passed_over_is_summed_with_those_who_are_free(
    tmp_path: Path,
) -> None:
    """Before: four answers of the second round bound these agents to its eight members, and no further round had a sum."""
    late = {("train", number): 1 for number in range(2, 6)}
    this = scene(secure={"least": 3}, rounds={"count": 4})
    run_with(tmp_path, {("secure-unmask", 1): 4, **late}, 3, this)
    assert [end[0] for end in ends(tmp_path)] == [
        "sum",
        "passed over: 4 members answered, 5 must",
        *["sum"] * 2,
    ]
    found = [one["reported"] for [one] in sums(tmp_path)]
    assert found[2] == ["agent-1", "agent-2", "agent-3"]
    assert found[3] == [f"agent-{i}" for i in range(1, 8)]


@pytest.mark.usefixtures("one_group")
def test_where_all_are_bound_the_newest_members_are_summed_again_once_all_are_there(
    tmp_path: Path,
) -> None:
    """The four of the third round, of whom two have answered: five are bound otherwise, and none of them is asked."""
    fail = {("secure-unmask", 1): 4, ("secure-unmask", 2): 2, ("train", 3): 1}
    this = scene(secure={"least": 3}, rounds={"count": 5})
    run_with(tmp_path, fail, 3, this)
    found = [(one["end"], len(one["reported"])) for [one] in sums(tmp_path)]
    assert found == [("sum", 8), ("passed over", 8), ("passed over", 4), ("sum", 4), ("sum", 8)]


@pytest.mark.parametrize("phase", ["secure-join"])
def test_too_few_members_make_a_sum_void_and_the_round_begins_again(
    tmp_path: Path, undisturbed: list[bytes], phase: str
) -> None:
    run = run_with(tmp_path, {(phase, 1): 5})
    assert [end[0] for end in ends(tmp_path)] == ["sum"] * 2
    steps = [row.get("phase") for row in rows(tmp_path) if row.get("round") == 1]
    assert steps.count("secure-box") == 2
    assert fingerprint(run) == undisturbed


@pytest.mark.parametrize(
    ("fail", "times", "why"),
    [
        ({("secure-unmask", 0): 5}, secured.ASKED_FOR_ANSWERS, "3 members answered, 5 must"),
        ({("secure-join", 0): 8}, secured.MOST_VOIDS, "void: too few agents for a sum"),
    ],
)
def test_a_round_whose_first_of_two_sums_is_passed_over_ends_without_the_second(
    tmp_path: Path, fail: dict[tuple[str, int], int], times: int, why: str
) -> None:
    """FedDANE corrects its training by the gradients of the first one."""
    run_with(tmp_path, fail, times, scene("feddane", rounds={"count": 2}))
    assert "train" not in [row.get("phase") for row in rows(tmp_path) if row.get("round") == 0]
    found = [end for groups in ends(tmp_path) for end in groups]
    assert [why in end for end in found] == [True, False, False]
    assert found[1:] == ["sum", "sum"]


def test_answers_that_come_at_the_second_asking_open_the_sum(
    tmp_path: Path, undisturbed: list[bytes]
) -> None:
    run = run_with(tmp_path, {("secure-unmask", 0): 5})
    assert [end[0] for end in ends(tmp_path)] == ["sum"] * 2
    assert fingerprint(run) == undisturbed


@pytest.mark.parametrize(
    ("phase", "times", "end"),
    [
        ("secure-join", secured.MOST_VOIDS, "void: too few agents for a sum"),
        ("secure-unmask", secured.ASKED_FOR_ANSWERS, "passed over: 3 members answered, 5 must"),
    ],
)
def test_an_evaluation_below_the_threshold_has_no_figures_but_a_reason_and_ends_no_run(
    tmp_path: Path, phase: str, times: int, end: str
) -> None:
    this = scene(rounds={"count": 2}, evaluation={"every": 1})
    run = run_with(tmp_path, {(phase, 1): 5 if phase == "secure-unmask" else 8}, times, this)
    evaluated = [row for row in rows(tmp_path) if "evaluation" in row]
    assert [bool(row["evaluation"]) for row in evaluated] == [False, True]
    [why] = evaluated[0]["notes"]["secure"]
    assert f"{why['end']}: {why['why']}" == end
    assert run.engine.round == 2


def test_newest_averages_are_in_the_result_with_the_number_of_agents_and_none_of_a_single_one(
    tmp_path: Path,
) -> None:
    run = in_process(tmp_path / "run", scene(rounds={"count": 2}, evaluation={"every": 1}))
    plain = in_process(
        tmp_path / "plain", scenario("fedavg", rounds={"count": 2, "participation": 1.0})
    )
    found, expected = (result_of(one, None).to_json()["accuracy"] for one in (run, plain))
    for mode in ("server", "tuned", "baseline"):
        assert found[mode]["agents"] == expected[mode]["agents"] == 8
        for average in ("micro", "macro"):
            means = found[mode]["accuracy"][average]
            assert means == pytest.approx(expected[mode]["accuracy"][average], abs=1e-8)
    assert set(map(repr, per_agent(run).values())) == {"{}"}
    assert len(run.facts.history) == 2


def test_each_cluster_has_the_averages_of_its_own_sum(tmp_path: Path) -> None:
    run = in_process(tmp_path, scene("fedclust", strategy=OPTIONS["fedclust"], rounds={"count": 2}))
    row, *_ = [row for row in rows(tmp_path) if "evaluation" in row]
    clusters = Counter(run.strategy.assignment(run.state).values())
    large = {str(cluster): size for cluster, size in clusters.items() if size >= 3}
    assert {cluster: own["agents"] for cluster, own in row["by_cluster"].items()} == large
    assert row["evaluation"]["server"]["agents"] == sum(large.values())


def test_a_report_whose_vector_its_agent_did_not_sign_is_set_aside_and_the_others_are_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked vectors are added up as they come; a wrong one must not spoil the sum."""
    watch = Watch.of(monkeypatch)

    class Lying(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            report = super().work(run, client, order)
            if client != "agent-3" or phases.MASKED not in report.vectors:
                return report
            other = encode(np.ones(run.setup.layout.size + 2, np.uint32), Codec(), rng=RNG)[0]
            return report.model_copy(update={"vectors": {phases.MASKED: other}})

    ended(begun(tmp_path, scene(rounds={"count": 1})), Lying({}))
    assert watch.check(tmp_path) == 1 + 1
    [[group]] = sums(tmp_path)
    assert group["missing"] == ["agent-3"]


class Killed(Exception):  # noqa: N818 - a kill
    pass


@pytest.mark.parametrize("step", [1, 8])
def test_a_coordinator_killed_at_any_step_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: list[bytes], step: int
) -> None:
    """Killed while the reports of a step come in, but for boxes with half of them in the spool."""

    class Ending(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            # the driver of a simulation closes a resumed step with the reports that it has
            if order.step == step and (step in (1, 5) or client == "agent-4"):
                raise Killed
            return super().work(run, client, order)

    this = scene()
    people = samples_of(small_run.clients())
    folder = tmp_path / "run"
    run = begun(folder, this)
    with pytest.raises(Killed):
        Driver(run, Ending({})).complete(people)
    again, first = Run.resume(
        folder, this, small_run.setup(this), rules=small_run.rules(this), now=0.0
    )
    finished = Driver(again, Failing({})).complete(people, first)
    assert fingerprint(finished) == undisturbed
    assert [end[0] for end in ends(folder)] == ["sum", "sum"]
