"""The rules about devices, each just beyond its limit and just within it. Statuses alone: no broker, no process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from covey.coordinator.odd import Broker, Odd, ranked
from covey.extras.doctor import devices
from covey.extras.doctor.devices import Seen, odd_devices
from covey.extras.doctor.tests.odd_words import DAY, HOUR, NOW, kinds, named
from covey.shared.mqtt.duplicate_ids import session_id
from covey.shared.wire.documents import EXPELLED, FELL, AgentStatus, CoordinatorStatus, ModelInUse
from covey.shared.wire.format import FORMAT
from tests.agent.orders import deployment

# -- devices ---------------------------------------------------------------------------------------------------------

SESSION = session_id(NOW - DAY, "ab")
CALLED = session_id(NOW - 2 * HOUR, "cd")


def status(agent: str = "gw-1", **changed: Any) -> AgentStatus:
    fields = {"session": SESSION, "serial": 3, "online": True, "epoch": f"{CALLED}.1", "version": "2.0.1", "clock": NOW - 5, "samples": 100}  # fmt: skip
    return AgentStatus(agent=agent, **{**fields, **changed})


def caller(**changed: Any) -> CoordinatorStatus:
    return CoordinatorStatus(**{"online": True, "epoch": f"{CALLED}.1", "version": "2.0.1", **changed})  # fmt: skip


KNOWN = {*Seen.__dataclass_fields__} - {"version"}


def odd_about(*, others: int = 2, **changed: Any) -> list[Odd]:
    """All that is odd about a fleet in which gw-1 is another one; keys of `Seen` are meant as such."""
    known = {name: changed.pop(name) for name in list(changed) if name in KNOWN}
    known["version"] = changed.pop("calls", "")
    statuses = {f"gw-{n + 2}": status(f"gw-{n + 2}") for n in range(others)}
    statuses["gw-1"] = status(**changed)
    return ranked(odd_devices(Seen(NOW, statuses, **known)))


def one(**changed: Any) -> Odd:
    [odd] = odd_about(**changed)
    return odd


def test_nothing_is_odd_about_devices_that_are_alike() -> None:
    assert odd_about() == []
    assert odd_about(coordinator=caller()) == []
    assert list(odd_devices(Seen(NOW))) == []


def test_an_expelled_device_is_no_member() -> None:
    gone: dict[str, Any] = {"online": False, "problem": EXPELLED, "twins": 3, "disk_free": 1}
    assert odd_about(**gone) == []
    assert odd_about(**gone, elsewhere={"gw-1": "other"}) != [], "it came back elsewhere"
    assert odd_about(rows={"gw-5": {"problem": EXPELLED}}) == []


def test_a_broker_that_fails_is_the_heaviest() -> None:
    odd = one(broker=Broker("it drops what it acknowledges"))
    assert (odd.who, odd.what, odd.next, odd.weight) == ("broker", "it drops what it acknowledges", "`broker doctor`", 9)  # fmt: skip


def test_a_broker_that_names_what_helps_needs_no_other_command() -> None:
    why = "its certificate has expired; `broker lab renew` makes a new one"
    assert one(broker=Broker(why)).next == "`broker lab renew`"


def test_room_on_disks() -> None:
    odd = one(free=999_999_999)
    assert (odd.who, odd.what, odd.next, odd.weight) == ("coordinator", "1000 MB free on the disk of its runs", "`coordinator prune`", 9)  # fmt: skip
    assert odd_about(free=1_000_000_000) == []
    odd = one(disk_free=(512 << 20) - 1)
    assert (odd.who, odd.kind, odd.what, odd.since) == ("gw-1", "disk", "537 MB free on its disk", NOW - 5)  # fmt: skip
    assert odd_about(disk_free=512 << 20) == []
    assert "full, read-only, or closed" in one(disk_free=0).what
    assert devices.megabytes(1e9) == "1.0 GB"


def test_certificates_end() -> None:
    odd = one(certificate=NOW)
    assert (odd.who, odd.what, odd.next, odd.since, odd.weight) == ("gw-1", "its certificate has expired", "`broker lab rotate gw-1`", NOW, 0)  # fmt: skip
    assert one(certificate=NOW - HOUR).weight == HOUR
    odd = one(certificate=NOW + DAY)
    assert (odd.what, odd.since) == ("its certificate ends in 1 day", None)
    assert odd.weight == pytest.approx(-1 / 14)
    assert one(certificate=NOW + DAY - 1).what == "its certificate ends in 23 hours"
    assert one(certificate=NOW + 59).what == "its certificate ends in 0 minutes"
    assert one(certificate=NOW + 14 * DAY - 1).what == "its certificate ends in 13 days"
    assert odd_about(certificate=NOW + 14 * DAY) == []
    # an end that most share is the broker's, by whatever way it is known
    odd = one(broker=Broker(until=NOW - 1))
    assert (odd.who, odd.next) == ("broker", "`broker lab renew`")
    assert named(odd_about(broker=Broker(until=NOW - 1), certificate=NOW - 1)) == [("broker", "certificate")]  # fmt: skip
    statuses = {name: status(name, certificate=NOW - 1) for name in ("a", "b")}
    odd = next(iter(odd_devices(Seen(NOW, statuses))))
    assert (odd.who, odd.next) == ("broker", "`broker lab renew`")
    statuses |= {"c": status("c"), "d": status("d")}
    assert [one.who for one in odd_devices(Seen(NOW, statuses))] == ["broker"], "two do not know"
    statuses |= {"c": status("c", certificate=NOW - 2), "d": status("d", certificate=NOW - 3)}
    assert [one.who for one in odd_devices(Seen(NOW, statuses))] == ["a", "b", "c", "d"]


def test_what_a_device_states_itself() -> None:
    odd = one(twins=1)
    assert (odd.kind, odd.next, odd.since) == ("twin id", "give one of them another --id", NOW - 5)  # fmt: skip
    odd = one(problem="policy of this device: epochs")
    assert (odd.kind, odd.what, odd.next) == ("excluded", "it takes no part: policy of this device: epochs", "on the device: agent lab policy")  # fmt: skip
    assert odd.since == NOW - 5
    assert one(problem="no rows").next == "on the device: agent check DATA"
    assert kinds(odd_about(problem="no rows", online=False)) == []


def test_a_clock_is_off_by_more_than_ten_minutes() -> None:
    assert odd_about(clock=NOW + 600) == []
    odd = one(clock=NOW + 601)
    assert (odd.kind, odd.what, odd.next, odd.weight) == ("clock", "its clock is 10 minutes ahead", "on the device: timedatectl", 601)  # fmt: skip
    assert odd_about(clock=NOW - 2 * HOUR - 600) == [], "it was published before the roll call"
    odd = one(clock=NOW - 2 * HOUR - 601)
    assert odd.what == "its clock is 10 minutes or more behind: it stands still, or was never set"
    assert one(clock=NOW - 2 * HOUR - DAY).what.startswith("its clock is 1 day or more behind")
    assert one(clock=NOW - 3 * HOUR - 1).what.startswith("its clock is 1 hour or more behind")
    assert odd_about(clock=1.6e9 - 600, epoch="") == []
    assert kinds(odd_about(clock=1.6e9 - 601, epoch="")) == ["clock"]
    assert odd_about(clock=None) == []
    assert odd_about(clock=4000.0, online=False) == []
    # the coordinator saw it come
    assert kinds(odd_about(rows={"gw-1": {"behind": 601.0}})) == ["clock"]
    assert odd_about(rows={"gw-1": {"behind": 600.0}}) == []
    assert odd_about(rows={"gw-1": {"behind": None}}) == []


def clocks(ours: float, *theirs: float, **row: float) -> list[tuple[str, str]]:
    """The rows about clocks by the seconds that each is ahead of the true time; ours called the roll two hours ago.

    Keys are seconds by which the coordinator saw the clock of gw-1, gw-2 and so on behind its own.
    """
    epoch = f"{session_id(NOW + ours - 2 * HOUR, 'cd')}.1"
    statuses = {f"gw-{n}": status(f"gw-{n}", epoch=epoch, clock=NOW + own - 5) for n, own in enumerate(theirs, 1)}  # fmt: skip
    rows = {name.replace("_", "-"): {"behind": behind} for name, behind in row.items()}
    found = ranked(odd_devices(Seen(NOW + ours, statuses, rows)))
    assert {odd.kind for odd in found} <= {"clock"}
    return [(odd.who, odd.what.partition(":")[0]) for odd in found]


def test_a_clock_that_most_devices_contradict_is_ours() -> None:
    ahead, behind = (
        "the clock of its machine is 1 day ahead of",
        "the clock of its machine is 1 day behind",
    )
    assert clocks(DAY + 2 * HOUR, 0, 0, 0, 0) == [("coordinator", f"{ahead} 4 of 4 devices")]
    assert clocks(-DAY, 0, 0, 0) == [("coordinator", f"{behind} 3 of 3 devices")]
    assert clocks(-DAY, 0, 0, -DAY) == [("coordinator", f"{behind} 2 of 3 devices")]
    assert clocks(0, DAY, 0, 0) == [("gw-1", "its clock is 1 day ahead")]
    assert clocks(0, DAY, DAY, 0, 0) == [("gw-1, gw-2", "its clock is 1 day ahead")], "not most"
    assert clocks(0, DAY) == [("gw-1", "its clock is 1 day ahead")], "one against one"
    # the coordinator saw when each status came: the one that agrees with it is the wrong one
    lags = {f"gw_{n}": DAY for n in (1, 2, 3)} | {"gw_4": 1.0}
    assert clocks(DAY, 0, 0, 0, DAY, **lags) == [
        ("coordinator", f"{ahead} 3 of 4 devices"),
        ("gw-4", "its clock is 1 day ahead"),
    ]
    never_set = clocks(0, *[1e6 - NOW] * 3)
    assert [who for who, _ in never_set] == ["gw-1, gw-2, gw-3"], "they agree, and are wrong"


def test_reports_that_are_refused() -> None:
    def odd(row: Mapping[str, Any], **changed: Any) -> Odd:
        [found] = devices.reports_of("gw-1", {"seen": NOW - 9, **row}, status(**changed))
        assert found.kind == "reports"
        return found

    found = odd({"quarantined": "loss: nan", "refusals": {"rate": 2}})
    assert (found.what, found.since, found.weight) == ("in quarantine: loss: nan", NOW - 9, 9)
    assert found.next == "`coordinator lab story gw-1`, then `coordinator lab release gw-1` or `broker expel gw-1`"  # fmt: skip
    found = odd({"refusals": {"rate": 20, "loss": 1}}, refused="loss: nan")
    assert (found.what, found.since) == ("its messages were refused: rate 20, loss 1", NOW - 9)
    assert odd({"set_aside": "its newest report was refused: x", "refusals": {"rate": 2}}).what == "its newest report was refused: x"  # fmt: skip
    found = odd({}, refused="loss: nan")
    assert (found.what, found.since) == ("its newest report was refused: loss: nan", NOW - 5)
    assert found.next == "`coordinator lab story gw-1`"
    assert odd({"set_aside": "its newest report was refused: x"}).what.endswith("refused: x")
    assert named(odd_about(rows={"gw-1": {"quarantined": "loss: nan"}})) == [("gw-1", "reports")]
    assert list(devices.reports_of("gw-1", {})) == []
    assert list(devices.reports_of("gw-1", {}, status())) == []
    # messages of an honest agent: from an earlier run, or where others had taken the room
    honest = {"unknown sender": 6, "other run": 1, "no room": 1, "disk full": 1}
    assert list(devices.reports_of("gw-1", {"refusals": honest})) == []
    shrunk = {"refusals": {"too many examples": 1}}
    assert list(devices.reports_of("gw-1", shrunk)) == []
    assert (
        "too many" in odd({**shrunk, "set_aside": "its newest report was refused: too many"}).what
    )
    found = odd({"refusals": {"unknown sender": 6, "rate": 10}})
    assert found.what == "its messages were refused: rate 10"


def test_a_few_statuses_too_many_are_no_alarm() -> None:
    """A device that was set right while others were: one status within a second of another, and the newest was kept."""
    assert odd_about(rows={"gw-1": {"seen": NOW, "refusals": {"rate": 9}}}) == []
    odd = one(rows={"gw-1": {"seen": NOW, "refusals": {"rate": 10}}})
    assert (odd.kind, odd.what) == ("reports", "its messages were refused: rate 10")


def test_a_model_in_use_that_is_worse_on_changed_data() -> None:
    figures = "accuracy 0.28 on 48 test samples, 0.9 with the data before"
    note = f"in use: june{FELL}{figures}"
    found = one(model=ModelInUse(run="r1", round=5, name="june", note=note))
    assert (found.kind, found.what) == ("figure", f"its model in use{FELL}{figures}")
    assert odd_about(model=ModelInUse(run="r1", round=5, name="june", note="in use: june")) == []


def test_work_that_fails() -> None:
    def odd(**row: Any) -> Odd:
        [found] = devices.reports_of("gw-1", {"seen": NOW - 9, **row})
        assert (found.kind, found.since) == ("work", NOW - 9)
        return found

    found = odd(failing="no model", failed="another", failures=3)
    assert (found.what, found.next, found.weight) == ("it cannot do its work: no model", "`coordinator lab story gw-1`", 3.0)  # fmt: skip
    assert odd(failed="no model", failures=1).weight == 1.0
    assert list(devices.reports_of("gw-1", {"failed": "no model", "failures": 0})) == []
    for words in ("out of memory", "900 MiB", "largest_model_mb: 3"):
        assert odd(failing=words).next == "on the device: agent lab policy"
    assert odd(failing="x").weight == 0.0


def test_devices_that_are_away() -> None:
    row = {"gw-1": {"seen": NOW - 9}}
    odd = one(online=False, serial=0, rows=row)
    assert (odd.kind, odd.what, odd.next, odd.since) == ("offline", "offline: its connection broke", "look at its power and network; `broker list`", NOW - 9)  # fmt: skip
    assert kinds(odd_about(online=False, serial=0, certificate=NOW)) == ["certificate"]
    assert kinds(odd_about(online=False, serial=0, certificate=NOW + 20 * DAY)) == ["offline"]
    never_heard = one(online=False, serial=0, coordinator=caller())
    assert never_heard.what == "offline: its connection broke before the coordinator was started"
    assert never_heard.since == pytest.approx(NOW - 2 * HOUR)
    ended = caller(online=False)
    assert one(online=False, serial=0, coordinator=ended).since is None, (
        "it may have been lost since"
    )
    assert kinds(odd_about(online=False, serial=0, certificate=NOW, waits="for 3")) == ["certificate"]  # fmt: skip
    assert odd_about(online=False) == [], "it said goodbye"
    odd = one(online=False, waits="9 of 10 agents are online", clock=None, rows=row)
    assert (odd.kind, odd.what, odd.next, odd.since) == ("offline", "its agent was stopped, and the run waits: 9 of 10 agents are online", "on the device: agent start", NOW - 9)  # fmt: skip
    assert one(online=False, waits="for 3").since == NOW - 5
    assert odd_about(waits="for 3") == []
    odd = one(rows={"gw-1": {"seen": NOW - 9, "silent": "twice"}}, coordinator=caller(epoch="other"))  # fmt: skip
    assert (odd.what, odd.next, odd.since) == ("online, and sends no reports: twice", "`coordinator lab story gw-1`", NOW - 9)  # fmt: skip


def test_a_roll_call_is_answered_within_two_minutes_and_its_spread() -> None:
    def kinds_at(called: float, online: bool = True, **changed: Any) -> list[str]:
        epoch = f"{session_id(called, 'ef')}.1"
        rest = {f"gw-{n + 2}": status(f"gw-{n + 2}", epoch=epoch) for n in range(2)}
        statuses = {"gw-1": status(**changed), **rest}
        calling = caller(online=online, epoch=epoch, spread_s=30.0)
        return kinds(odd_devices(Seen(NOW, statuses, {"gw-1": {"seen": NOW}}, calling)))

    assert kinds_at(NOW - 150) == []
    assert kinds_at(NOW - 151) == ["silent"]
    assert kinds_at(NOW - 151, online=False) == []
    assert kinds_at(NOW - 151, serial=4) == ["silent"]
    assert odd_about(coordinator=caller(epoch="")) == []
    assert odd_about(coordinator=caller(epoch="short.1")) == [], "nobody knows when it was called"
    odd = one(epoch=f"{CALLED}.0", coordinator=caller(), rows={"gw-1": {"seen": NOW - 9}})
    assert (odd.what, odd.next, odd.since) == ("online by its last status, and has not answered the coordinator's roll call", "look at its power and network", NOW - 9)  # fmt: skip


def test_a_device_whose_check_of_its_data_does_not_end_takes_no_part() -> None:
    """It has answered the roll call, and is never invited: its row is `checking its data`."""
    calling = caller(task_digest="new")

    def checks_for(seconds: float, **changed: Any) -> list[Odd]:
        rest = {f"gw-{n + 2}": status(f"gw-{n + 2}", task="new") for n in range(2)}
        statuses = {**rest, "gw-1": status(**{"task": "", "samples": 0, **changed})}
        rows = {name: {"seen": NOW - seconds} for name in statuses}
        return ranked(odd_devices(Seen(NOW, statuses, rows, calling)))

    assert checks_for(600) == []
    [odd] = checks_for(601)
    assert (odd.who, odd.kind, odd.since) == ("gw-1", "silent", NOW - 601)
    assert (
        odd.what == "it has compared its data with the task for 10 minutes, and takes no part yet"
    )
    assert odd.next == "look at its load (top); on the device: agent check DATA"
    assert kinds(checks_for(7200, task="of another run")) == ["silent"]
    assert checks_for(7200, task="new", samples=99) == []
    assert checks_for(7200, online=False, serial=4) == []
    assert kinds(checks_for(7200, problem="no such file")) == ["excluded"], "it has compared them"
    assert odd_about(coordinator=caller(), rows={"gw-1": {"seen": NOW - 7200}}) == [], "there is no task"  # fmt: skip
    assert odd_about(coordinator=calling, rows={}) == [], "nobody knows since when"


def test_who_is_known_and_has_no_status() -> None:
    odd = one(rows={"gw-9": {"seen": NOW - 9}})
    assert (odd.who, odd.kind, odd.since, odd.next) == ("gw-9", "silent", NOW - 9, "`broker doctor --credentials FILE` with its file")  # fmt: skip
    assert list(odd_devices(Seen(NOW, {}, {"gw-9": {}}))) == [], "the broker has none at all"
    odd = one(elsewhere={"gw-9": "defualt"})
    assert (odd.who, odd.kind, odd.what) == ("gw-9", "federation", "it is in federation 'defualt', which has had no coordinator")  # fmt: skip
    assert odd_about(elsewhere={"gw-1": "defualt"}) == []


def linked(*losses: int, **changed: Any) -> list[Odd]:
    changed.setdefault("epoch", "")
    statuses = {f"gw-{n}": status(f"gw-{n}", links=lost + 1, **changed) for n, lost in enumerate(losses)}  # fmt: skip
    return ranked(odd_devices(Seen(NOW, statuses)))


def test_links_that_are_lost_twenty_times_a_day() -> None:
    assert linked(0, 0, 19) == []
    [odd] = linked(0, 0, 20)
    assert (odd.who, odd.what, odd.weight) == ("gw-2", "its link was lost 20 times within a day, the others' 0", 20)  # fmt: skip
    assert linked(3, 3, 29) == [], "a network that all of them have"
    assert named(linked(3, 3, 30)) == [("gw-2", "link")]
    assert named(linked(0, 20, 0, 30, 0)) == [("gw-3", "link"), ("gw-1", "link")]
    [odd] = linked(0, 20, 30)
    assert (odd.who, odd.kind, odd.weight) == ("broker", "broker", 20)
    assert odd.what == "it drops connections: 2 of 3 devices came back 20 times or so"
    assert named(linked(0, 0, 0, 20, 30)) == [("gw-4", "link"), ("gw-3", "link")]
    assert named(linked(20, 0)) == [("gw-0", "link")]
    assert named(linked(20, 20)) == [("broker", "broker")]
    assert linked(20, -1) == [], "there is no other to compare with"
    assert linked(0, 0, 20, clock=NOW - DAY - 1) == [], "it was the day before"
    assert named(linked(0, 0, 20, clock=NOW - DAY)) == [("gw-2", "link")]
    assert named(linked(0, 0, 20, clock=None)) == [("gw-2", "link")]


def test_a_link_explains_nobody_else() -> None:
    flaps, lost = status(links=40), status("gw-2", online=False, serial=0)
    statuses = {"gw-1": flaps, "gw-2": lost, "gw-3": status("gw-3", links=1)}
    assert named(odd_devices(Seen(NOW, statuses))) == [("gw-2", "offline"), ("gw-1", "link")]


def test_a_broker_that_drops_connections_explains_who_is_away() -> None:
    statuses = {f"gw-{n}": status(f"gw-{n}", links=40) for n in range(4)}
    statuses["gw-4"] = status("gw-4", online=False, serial=0)
    statuses["gw-5"] = status("gw-5", epoch="", links=40)
    assert kinds(odd_devices(Seen(NOW, statuses, coordinator=caller()))) == ["broker"]


def test_versions_of_devices_and_of_the_coordinator() -> None:
    odd = one(version="1.9")
    assert (odd.who, odd.what, odd.next, odd.since) == ("gw-1", "Covey 1.9, most devices have 2.0.1", "update it: docs/operations.md#upgrade", NOW - DAY)  # fmt: skip
    assert odd_about(version="1.9", online=False) == []
    assert odd_about(version="1.9", others=1) == [], "no version is that of most"
    assert odd_about(version="") == []
    assert odd_about(version="2.0.1.dev4") == []
    assert odd_about(version="2.1") == [], "the first one that was upgraded"
    assert odd_about(version="2.1", calls="2.1") == []
    odd = one(version="10.0", calls="2.0.1")
    assert (odd.who, odd.what, odd.next, odd.weight) == ("gw-1", "Covey 10.0 is newer than the coordinator's 2.0.1", "update the coordinator: docs/operations.md#upgrade", 8)  # fmt: skip
    assert named(odd_about(calls="2.0")) == [("gw-1, gw-2, gw-3", "version")]
    assert one(version="2.2", calls="2.0").what.startswith("Covey 2.2 is")
    assert odd_about(calls="2.0.1") == []


def test_formats_of_messages() -> None:
    odd = one(format=FORMAT - 1, version="1.9", problem="speaks another format")
    assert (odd.what, odd.next, odd.weight) == (f"Covey 1.9 speaks format {FORMAT - 1}, not {FORMAT}", "update it: docs/operations.md#upgrade", 9)  # fmt: skip
    assert odd.since == NOW - DAY
    odd = one(format=FORMAT + 1, version="")
    assert odd.what == f"Covey of unknown version speaks format {FORMAT + 1}, not {FORMAT}"
    assert odd.next == "update the coordinator: docs/operations.md#upgrade"
    assert odd_about(format=FORMAT + 1, online=False) == []
    assert odd_about(format=FORMAT + 1, version="3.0", calls="2.0.1")[0].weight == 8


def test_without_a_deployment_a_version_in_use_is_not_judged() -> None:
    assert odd_about(model=ModelInUse(run="run-0", round=3, serial=5)) == []


def publication(**changed: Any) -> list[Odd]:
    fields = {"run": "run-0", "round": 3, "name": "may", "serial": 5, "note": "rejected: worse", **changed}  # fmt: skip
    wanted = deployment(name="june")
    statuses = {"a": status("a", model=ModelInUse(**fields)), "b": status("b"), "c": status("c", model=ModelInUse(**{**fields, "note": ""}))}  # fmt: skip
    return list(odd_devices(Seen(NOW, statuses, deployment=wanted)))


def test_a_publication_that_devices_refuse_is_one_thing() -> None:
    [odd] = publication()
    assert (odd.who, odd.kind, odd.what, odd.next) == ("a, c", "publication", "refused june: rejected: worse", "`coordinator versions`")  # fmt: skip
    assert publication(run="run-1") == []
    assert [odd.who for odd in publication(note="in use: run-0@3")] == ["c"], "a refused nothing"
    assert publication(serial=4) == [], "not judged yet"
    assert len(publication(run="run-1", round=4)) == 1


def test_devices_with_far_fewer_rows_state_it_between_runs() -> None:
    assert named(odd_about(samples=10)) == [("gw-1", "rows")]
    assert odd_about(samples=11) == []
    assert odd_about(samples=0) == []


def test_many_devices_whose_reports_are_late_have_one_cause() -> None:
    def silent(late: int) -> list[tuple[str, str]]:
        statuses = {f"gw-{n}": status(f"gw-{n}") for n in range(8)}
        rows = {
            f"gw-{n}": {"silent": f"{n + 3} times in a row: no report in time"} for n in range(late)
        }
        return named(odd_devices(Seen(NOW, statuses, rows=rows)))

    assert silent(4) == [(f"gw-{n}", "silent") for n in range(4)]
    assert silent(5) == [("coordinator", "silent")]
