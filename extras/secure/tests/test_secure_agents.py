"""An agent under secure sums: it trains ahead, keeps what a sum needs, sends nothing in the clear, and refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.policy import DEFAULT_RULES, PrivacyDemand
from covey.coordinator.run.run import Run
from covey.extras.secure import agent as secure_agent
from covey.extras.secure import phases
from covey.extras.secure.fleet_key import signed_list
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.primitives import hashed, number
from covey.extras.secure.secure_folder import STATE, SecureFolder
from covey.extras.secure.simulated import FEDERATION, simulated_identity
from covey.extras.secure.tests.secure_run import (
    SECURE,
    Failing,
    begun,
    ended,
    ends,
    rows,
    scene,
    sums,
)
from covey.shared.errors import PublicError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import Perform
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests import clock
from tests.agent.orders import work
from tests.kit import small_run
from tests.kit.local_clients import secure_folder
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import PATIENT, Fleet, Numpy, over_the_wire
from tests.kit.small_run import fingerprint, in_process, scenario

FEW = {"least": 3}  # of four agents
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
    masked = clock.run(seconds(scene(secure=FEW, **sections, name="masked")), within_s=1e4)
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
        this = scene(secure=FEW, rounds={"count": 1, "start_agents": 4})
        people = small_run.clients(4, this)
        patient = small_run.rules(this, **PATIENT)
        fleet = Fleet(tmp_path, this, patient, MemoryBroker(), people)
        policy = DEFAULT_RULES.policy.model_copy(update={"max_seconds": 5.0})
        fleet.device_rules = replace(DEFAULT_RULES, policy=policy)
        fleet.pool = Slow(people, takes_s=10.0)
        async with fleet:
            await fleet.serve()

    clock.run(whole(), within_s=60.0)  # what was cut off is done without the data
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
                    (ref.key, run.orders.content_of(ref.key)) for ref in order.work.models
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
    monkeypatch.setattr(run.orders, "content_of", contents.__getitem__)
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


def test_an_owner_can_refuse_orders_without_secure_sums() -> None:
    demand = PrivacyDemand(secure_least=4)
    assert "secure_least" in (demand.refuses(work()) or "")
    secure = work().model_copy(update={"privacy": {"secure": SECURE, "rounds": 1}})
    assert demand.refuses(secure) is None
    statistics = secure.model_copy(update={"phase": "moments"})
    assert "secure_least" in (demand.refuses(statistics) or "")
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
