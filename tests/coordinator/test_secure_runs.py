"""Runs under secure sums: the bytes of plain integer sums, also where agents fail or programs are killed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.kept.secure_folder import STATE, SecureFolder
from covey.agent.policy import DEFAULT_RULES, PrivacyDemand
from covey.coordinator.dashboard.sections import sections
from covey.coordinator.fold.private_sums import epsilon
from covey.coordinator.plan.plan import plan
from covey.coordinator.report.html_report import sums_table
from covey.coordinator.run.result import per_agent, result_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.coordinator.view.lines import reduced
from covey.coordinator.view.state import RunPlan, Sources, dashboard_state
from covey.shared.errors import PublicError
from covey.shared.numerics.measures import OF_CLASSIFICATION
from covey.shared.scenario.compare import Metric
from covey.shared.scenario.scenario import Scenario
from covey.shared.secure import agent as secure_agent
from covey.shared.secure.agent import OwnersPolicy
from covey.shared.secure.fleet_key import signed_list
from covey.shared.secure.integers import Integers, Total, total_of
from covey.shared.secure.messages import Entry
from covey.shared.secure.parameters import Scale
from covey.shared.secure.primitives import hashed, number
from covey.shared.secure.simulated import FEDERATION, simulated_identity
from covey.shared.strategies import flux
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import COUNTED
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.strategies.secured import coordinator as secured
from covey.shared.strategies.secured import phases
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests import clock
from tests.agent.orders import work
from tests.kit import small_run
from tests.kit.inside import inside
from tests.kit.local_clients import LocalClients, secure_folder
from tests.kit.memory_broker import MemoryBroker
from tests.kit.scenes import VECTORS
from tests.kit.small_fleet import PATIENT, Fleet, Numpy, over_the_wire
from tests.kit.small_run import fingerprint, in_process, samples_of, scenario
from tests.methods import of_each_kind
from tests.shared import test_strategy_kin

RNG = np.random.default_rng(0)
SECURE = {"clip": 10.0, "cap": 100, "colluders": 0.2}


def scene(method: str = "fedavg", **sections: Any) -> Any:
    privacy = {"secure": {**SECURE, **sections.pop("secure", {})}}
    rounds = {"participation": 1.0, "count": 2, **sections.pop("rounds", {})}
    return scenario(method, privacy=privacy, rounds=rounds, **sections)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The bytes of the usual run."""
    return fingerprint(in_process(tmp_path_factory.mktemp("whole"), scene()))


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def all_sums(folder: Path) -> list[list[dict[str, Any]]]:
    """How the sum of each group ended, in each round and evaluation."""
    ended = [row for row in rows(folder) if row.get("phase") == phases.UNMASK]
    return [row["notes"]["secure"] for row in ended]


def sums(folder: Path) -> list[list[dict[str, Any]]]:
    """The same of rounds."""
    ended = [row for row in rows(folder) if row.get("phase") == phases.UNMASK]
    return [row["notes"]["secure"] for row in ended if "evaluation" not in row]


def ends(folder: Path) -> list[list[str]]:
    """The same in words."""
    return [
        [f"{one['end']}: {one['why']}" if one["why"] else one["end"] for one in groups]
        for groups in sums(folder)
    ]


@dataclass
class Watch:
    """The integers that agents make of their updates, and the sums that the coordinator opens."""

    made: dict[ClientId, Integers] = field(default_factory=dict)  # the newest of each agent
    opened: list[tuple[Integers, dict[ClientId, Integers]]] = field(default_factory=list)

    @classmethod
    def of(cls, monkeypatch: pytest.MonkeyPatch) -> Watch:
        watch, save = cls(), SecureFolder.save_vector

        def saved(folder: SecureFolder, name: str, vector: Integers) -> None:
            if not name.endswith("-masked"):
                agent = Entry.from_bytes(folder.agent.identity.entry).agent
                watch.made[agent] = vector.copy()
            save(folder, name, vector)

        def opened(integers: Integers, reported: int, scale: Scale) -> Total:
            watch.opened.append((integers, dict(watch.made)))
            return total_of(integers, reported, scale)

        monkeypatch.setattr(SecureFolder, "save_vector", saved)
        monkeypatch.setattr(secured, "total_of", opened)
        return watch

    def check(self, folder: Path) -> int:
        """Each sum in the record is that of the integers of the agents in `reported`. Returns the number of sums."""
        recorded = [one for groups in all_sums(folder) for one in groups if one["end"] == "sum"]
        for one, (integers, made) in zip(recorded, self.opened, strict=True):
            plain = np.sum([made[agent] for agent in one["reported"]], axis=0, dtype=np.uint32)
            assert np.array_equal(integers, plain)
        return len(recorded)


OPTIONS: dict[str, dict[str, Any]] = {"ifca": {"shared_trunk": False}, "fedem": {"damped": False}}
LATER = {"flux", "fedrep", "fedbabu"}  # work of the second round differs from that of the first
SEALED = [name for name, method in BUILT_IN.items() if method.facts.sealed is not None]


@pytest.mark.parametrize("method", of_each_kind("secure sums", SEALED))
def test_a_secure_run_has_the_sums_of_plain_integers_and_the_clusters_of_the_run_without(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flux, "WARMUP_ROUNDS", 1)
    watch = Watch.of(monkeypatch)
    if method == "flux":  # its clusters are too small for a sum
        monkeypatch.setattr("covey.shared.strategies.flux._knee", lambda apart: 99.0)
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
        votes.append(run.strategy.shown(run.state).notes["votes"]["inputs"])
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


class Failing(LocalClients):
    """The first clients fail in a phase of a round, the first times that they are asked."""

    def __init__(self, fail: Mapping[tuple[str, int], int], times: int = 1) -> None:
        super().__init__(small_run.local_for(small_run.clients()))
        self.fail, self.times = dict(fail), times
        self.asked: Counter[tuple[str, int, ClientId]] = Counter()

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        phase, number = order.work.phase, order.work.round
        self.asked[phase, number, client] += 1
        fails = int(client.removeprefix("agent-")) < self.fail.get((phase, number), 0)
        if fails and self.asked[phase, number, client] <= self.times:
            return ReportContent.failed(order, client, "out of memory")
        return super().work(run, client, order)


def begun(folder: Path, this: Any) -> Run:
    return small_run.begun(folder, this, name="in-process")


def ended(run: Run, clients: Failing) -> Run:
    return Driver(run, clients).complete(samples_of(small_run.clients()))


def run_with(
    folder: Path, fail: Mapping[tuple[str, int], int], times: int = 1, this: Any = None
) -> Run:
    return ended(begun(folder, this or scene()), Failing(fail, times))


@pytest.mark.parametrize("phase", ["secure-box", "secure-join", "train", "secure-unmask"])
def test_members_that_fail_in_a_phase_are_missing_from_its_sum_alone(
    tmp_path: Path, phase: str
) -> None:
    run_with(tmp_path, {(phase, 0): 2, (phase, 1): 1})
    found = ends(tmp_path)
    assert [end[0] for end in found] == ["sum"] * 2
    members = 8 if phase == "secure-unmask" else 6
    assert len(sums(tmp_path)[0][0]["reported"]) == members


def test_a_model_whose_sum_was_answered_and_passed_over_is_summed_with_those_who_are_free(
    tmp_path: Path,
) -> None:
    """Before: four answers of the second round bound these agents to its eight members, and no further round had a sum."""
    late = {("train", number): 1 for number in range(2, 6)}
    run_with(tmp_path, {("secure-unmask", 1): 4, **late}, 3, scene(rounds={"count": 4}))
    assert [end[0] for end in ends(tmp_path)] == [
        "sum",
        "passed over: 4 members answered, 5 must",
        *["sum"] * 2,
    ]
    found = [one["reported"] for [one] in sums(tmp_path)]
    assert found[2] == ["agent-1", "agent-2", "agent-3"]
    assert found[3] == [f"agent-{i}" for i in range(1, 8)]


def test_where_all_are_bound_the_newest_members_are_summed_again_once_all_are_there(
    tmp_path: Path,
) -> None:
    """The four of the third round, of whom two have answered: five are bound otherwise, and none of them is asked."""
    fail = {("secure-unmask", 1): 4, ("secure-unmask", 2): 2, ("train", 3): 1}
    this = scene(rounds={"count": 5})
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
    assert run.round == 2


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
    assert len(run.history) == 2


def test_each_cluster_has_the_averages_of_its_own_sum(tmp_path: Path) -> None:
    run = in_process(tmp_path, scene("fedclust", rounds={"count": 2}))
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


HABITS = {"duplicate": 0.3, "reorder": 0.3, "drop_session": 0.01}


@pytest.mark.parametrize(("method", "habits"), [("fedavg", HABITS), ("fedrep", {})])
def test_the_wire_where_agents_train_ahead_gives_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, method: str, habits: dict[str, float]
) -> None:
    this = {"rounds": {"count": 2 if habits else 1}, "wire": {"part_bytes": 1024}}
    wired = over_the_wire(tmp_path / "wire", scene(method, **this), **habits)
    assert fingerprint(wired) == fingerprint(
        in_process(tmp_path / "in-process", scene(method, **this))
    )


def test_boxes_and_joins_are_exchanged_while_agents_train(tmp_path: Path) -> None:
    """Of four exchanges, two are hidden; the list comes before the training is over."""
    delay_s, training_s = 0.5, 10.0

    async def seconds(this: Any) -> float:
        people = small_run.clients(4, this)
        patient = small_run.rules(this, **PATIENT)
        broker = MemoryBroker(delay_s=delay_s)
        async with Fleet(tmp_path / this.name, this, patient, broker, people) as fleet:
            fleet.pool.takes_s = training_s
            await fleet.serve()
            return asyncio.get_running_loop().time()

    sections: dict[str, Any] = {
        "rounds": {"count": 1, "participation": 1.0, "start_agents": 4},
        "evaluation": {"deliver": "served"},
    }
    masked = clock.run(seconds(scene(**sections, name="masked")), within_s=1e4)
    plain = clock.run(seconds(scenario("fedavg", **sections, name="plain")), within_s=1e4)
    # an evaluation has as many exchanges of messages as a round
    assert masked - plain < 2 * 4 * delay_s


def test_training_ahead_takes_no_longer_than_the_device_allows(tmp_path: Path) -> None:
    ended: list[float] = []

    class Slow(Numpy):
        async def call(self, job: Any, *, weight: float = 0) -> Any:
            try:
                return await super().call(job, weight=weight)
            finally:
                if isinstance(job, Perform) and job.ahead:
                    ended.append(asyncio.get_running_loop().time())

    async def whole() -> None:
        this = scene(rounds={"count": 1, "start_agents": 4})
        people = small_run.clients(4, this)
        patient = small_run.rules(this, **PATIENT)
        fleet = Fleet(tmp_path, this, patient, MemoryBroker(), people)
        policy = DEFAULT_RULES.policy.model_copy(update={"max_seconds": 5.0})
        fleet.device_rules = replace(DEFAULT_RULES, policy=policy)
        fleet.pool = Slow(people, takes_s=10.0)
        async with fleet:
            await fleet.serve()

    with pytest.raises(TimeoutError):
        clock.run(whole(), within_s=17.0)
    # they began after ten seconds, in which the data was inspected
    assert [round(at) for at in ended[:4]] == [15] * 4


def test_work_leaves_the_disk_with_the_answer_and_a_sum_whose_time_is_over_with_the_next_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(SecureFolder, "now", property(lambda folder: clock_s[0]))
    orders: dict[tuple[str, ClientId], OrderMessage] = {}
    contents: dict[str, bytes] = {}

    class Late(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            assert order.work is not None
            orders[order.work.phase, client] = order
            if (order.work.phase, client) == ("train", "agent-1"):
                contents.update(
                    (ref.key, inside(run).orders.content_of(ref.key)) for ref in order.work.models
                )
            is_late = client == "agent-0" and order.work.phase == phases.UNMASK
            clock_s[0] = 3600.0 * is_late
            try:
                return super().work(run, client, order)
            except PublicError as error:
                return ReportContent.failed(order, client, str(error))

    this = scene(rounds={"count": 1})
    run = begun(tmp_path, this)
    clients = Late({})
    ended(run, clients)
    assert ends(tmp_path) == [["sum"]]
    monkeypatch.setattr(inside(run).orders, "content_of", contents.__getitem__)
    again = clients.work(run, "agent-1", orders["train", "agent-1"])  # of a coordinator's old copy
    assert "this agent has not joined a sum for this order" in (again.failure or "")
    for i in range(8):
        place = tmp_path / "agents" / f"agent-{i}" / "secure"
        assert [path.name for path in place.iterdir()] == [STATE]
        state = SecureFolder(place, simulated_identity(this.seed, f"agent-{i}")).state()
        assert state.vectors == []
        assert (state.sum is None) == (i == 0)


def test_no_report_of_a_secure_run_has_an_update_in_the_clear(tmp_path: Path) -> None:
    seen: list[ReportContent] = []

    class Watched(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            report = super().work(run, client, order)
            seen.append(report)
            return report

    ended(begun(tmp_path, scene()), Watched({}))
    trained = [report for report in seen if phases.MASKED in report.vectors]
    for report in trained:
        assert (report.examples, report.steps, report.loss) == (1, 0, 0.0)
        assert report.numbers.keys() == {phases.HEAD}
    contents = b"".join(report.vectors[phases.MASKED].data for report in trained)
    masked = np.frombuffer(contents, "<u4")
    # masked integers are uniform; small updates would lie at both ends alone
    counts, _ = np.histogram(masked, bins=8, range=(0, 2**32))
    assert counts.min() > 0.6 * masked.size / 8


def test_members_show_one_another_the_list_of_expelled_entries_and_believe_the_fleet_key_alone(
    tmp_path: Path,
) -> None:
    this = scene(rounds={"count": 1})
    fleet, liar = hashed("simulated fleet", number(this.seed)), bytes(32)
    lists = {
        "agent-0": signed_list(fleet, FEDERATION, [5], now_ms=1),
        "agent-1": signed_list(fleet, FEDERATION, [5, 6], now_ms=2),
        "agent-2": signed_list(liar, FEDERATION, [7], now_ms=9),
    }
    for agent in map("agent-{}".format, range(8)):
        folder = secure_folder(tmp_path / "agents" / agent / "secure", this, agent)
        assert folder is not None
        folder.save(folder.state().changed(expelled=lists.get(agent, b"")))
    in_process(tmp_path, this)
    assert ends(tmp_path) == [["sum"]]
    for agent in ("agent-0", "agent-1", "agent-7"):
        folder = secure_folder(tmp_path / "agents" / agent / "secure", this, agent)
        assert folder is not None
        assert folder.state().expelled == lists["agent-1"]


# -- before a run and after it ----------------------------------------------------------------------------------------


def test_the_plan_has_the_bytes_of_the_phases_of_a_sum(tmp_path: Path) -> None:
    sent: dict[str, list[int]] = {}
    fetched: dict[str, list[int]] = {}

    class Weighed(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            report = super().work(run, client, order)
            assert order.work is not None
            name = order.work.phase
            sent.setdefault(name, []).append(len(report.to_bytes()))
            fetched.setdefault(name, []).append(sum(ref.size for ref in order.work.models))
            return report

    this = scene(rounds={"count": 1})
    start = small_run.setup(this)
    run = Run.start(tmp_path, this, start, rules=small_run.rules(this), run="in-process", now=0.0)
    ended(run, Weighed({}))
    packets = 150  # bytes for each content
    found = plan(this, start, 8)
    for phase in found.phases[:-1]:
        assert phase.up_bytes == pytest.approx(np.mean(sent[phase.name]), abs=packets + 50)
        # the model of the round is fetched before the join, and once
        down = np.mean(fetched[phase.name])
        assert phase.down_bytes == pytest.approx(down, abs=3 * packets + 50)
    assert [(one.members, one.threshold) for one in found.sums.values()] == [(8, 5)] * 2
    assert "0.005 if 10% are gone" in dict(found.rows())["void sums, train"]


def test_the_plan_has_the_groups_of_each_phase_and_not_those_of_a_round_alone(
    tmp_path: Path,
) -> None:
    this = scene(rounds={"participation": 0.5}, secure={"group": 5})
    planned = plan(this, small_run.setup(this), 8)
    in_process(tmp_path, this)
    made = {
        name: [len(one["reported"]) + len(one["missing"]) for one in found[0]]
        for name, found in (("train", sums(tmp_path)), ("evaluate", all_sums(tmp_path)[-1:]))
    }
    assert made == {"train": [4], "evaluate": [4, 4]}
    assert {name: [one.members] * one.groups for name, one in planned.sums.items()} == made
    joins = [one for one in planned.phases if one.name == phases.JOIN]
    assert [one.invited for one in joins] == [4, 8]


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
        f"secure sums: a group of cluster 0 is passed over: {why}"
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
    privacy = inside(run).privacy
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
        measured = metric in slots.modes or metric == "global"  # of E-server
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


def test_an_owner_can_refuse_orders_without_secure_sums() -> None:
    demand = PrivacyDemand(secure_least=4)
    assert "secure_least" in (demand.refuses(work()) or "")
    secure = work().model_copy(update={"privacy": {"secure": SECURE, "rounds": 1}})
    assert demand.refuses(secure) is None
    statistics = secure.model_copy(update={"phase": "moments"})
    assert "secure_least" in (demand.refuses(statistics) or "")
    votes = secure.model_copy(update={"phase": "vote"})
    assert "secure_clear" in (demand.refuses(votes) or "")
    assert PrivacyDemand(secure_least=4, secure_clear=True).refuses(votes) is None
    assert demand.of_sums() == OwnersPolicy(least=4)
    bounds = PrivacyDemand(secure_epsilon=1.0, local_delta=1e-5, secure_known=("a",)).of_sums()
    rho = bounds.most_spent or 0.0
    assert rho + 2 * np.sqrt(rho * np.log(1e5)) == pytest.approx(1.0)  # Bun and Steinke 2016
    assert bounds.known == {"a"}


def test_a_damaged_state_of_a_device_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    folder = SecureFolder(tmp_path, simulated_identity(1, "a"))
    folder.save(folder.state())
    (tmp_path / STATE).write_bytes(b"damaged")
    with pytest.raises(PublicError, match="unknown which starts it has answered"):
        folder.state()


def test_a_member_whose_cells_do_not_open_is_named_and_takes_part_in_no_further_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dealing(Failing):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            with monkeypatch.context() as patched:
                if client == "agent-3":
                    patched.setattr(
                        secure_agent, "sealed", lambda key, text, about: bytes(len(text) + 16)
                    )
                return super().work(run, client, order)

    ended(begun(tmp_path, scene(rounds={"count": 2})), Dealing({}))
    notes = [row["notes"].get("secure") for row in rows(tmp_path) if row.get("phase") == "train"]
    assert [one["why"] for one in notes[0]] == ["cells do not open (agent-3)"]
    for [one] in sums(tmp_path):
        assert (one["end"], len(one["reported"])) == ("sum", 7)
        assert "agent-3" not in [*one["reported"], *one["missing"]]
