"""A few runs of the campaign `make chaos`, with faults that need no new import of torch; and its pure parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.shared.errors import UserError
from tests.chaos import check, pilot
from tests.chaos.__main__ import main, never_hit
from tests.chaos.faults import Injector
from tests.chaos.one import EQUAL, Outcome, calm, disturbed
from tests.chaos.packets import Packets, client_id, once_more
from tests.chaos.plan import KINDS, METHODS, Fault, Plan, plan
from tests.chaos.site import Program, Site
from tests.processes import needs_mosquitto

CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x1e\x00\x05covey"
PUBLISH = b"\x32\x09\x00\x03a/b\x00\x07hi"


def fault(kind: str, after: int, seconds: float = 1.0) -> Fault:
    return Fault(kind, after, delay_s=0.1, seconds=seconds, party="all", chance=0.5)


STORIES = {
    "links": (
        fault("duplicate", 0, 3.0),
        fault("cut in a packet", 1),
        fault("half-close", 2),
        fault("cut", 3),
    ),
    "brokers": (fault("broker with the database of another run", 1), fault("broker empty", 2)),
    "coordinators": (
        fault("damage a spooled report", 1),
        fault("damage a checkpoint array", 2),
        fault("kill worker", 3),
    ),
}


@pytest.mark.night
@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
async def test_runs_under_faults_end_in_the_bytes_of_the_calm_run(tmp_path: Path) -> None:
    start = tmp_path / "start.npz"
    async with Site(tmp_path / "site", agents=6, rounds=4, slow_s=0.05, learner="numpy") as site:
        await site.initial_models("fedclust", start)
        await site.start_fleet()
        wanted = await calm(site, "fedclust", start)
        for seed, (name, faults) in enumerate(STORIES.items()):
            outcome = await disturbed(site, Plan(seed, "fedclust", faults), start, wanted)
            assert outcome.outcome == EQUAL, name
            assert outcome.injected, name


async def test_a_disk_fills_up_once_the_run_has_begun_and_never_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    site.mounted = [site.run]
    full = fault("full disk of the coordinator", 0, 0.0)

    here = tmp_path / "here"

    async def asked(*about: object) -> None:
        """As the broker answers for a coordinator that has written this file."""
        if here.exists():
            raise UserError("another coordinator is at work")

    monkeypatch.setattr("tests.chaos.faults.ensure_single_coordinator", asked)

    async def found(script: str) -> tuple[bool, list[bool]]:
        """Whether the fault hit a coordinator that does this, and whether it was at work then."""
        of_it = site.coordinator = await Program.start(["sh", "-c", script], tmp_path / "log")
        seen = []

        def filled(folder: Path) -> Path:
            seen.append(here.exists())
            folder.mkdir(exist_ok=True)
            (folder / "ballast").touch()
            return folder / "ballast"

        monkeypatch.setattr("tests.chaos.faults.fill", filled)
        hit = await Injector(site, "run").inject(full)
        await of_it.kill()
        return hit, seen

    assert await found(f"sleep 0.2; touch {here}; exec sleep 60") == (True, [True])
    here.unlink()
    assert await found("exit 2") == (False, [])


@pytest.mark.night
@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
async def test_a_short_pilot_ends_as_it_should_and_shows_each_fault(tmp_path: Path) -> None:
    printed: list[str] = []
    is_good = await pilot.rehearsal(
        tmp_path, pilot.SHORT, devices=3, rounds=32, pictures=None, show=printed.append
    )
    assert is_good, "\n".join(printed)
    rows = [line for line in printed[-1].splitlines() if line.startswith("| ")]
    assert [row.split("|")[2].strip() for row in rows[1:]] == [
        "power cut of gw-02",
        "the broker moves",
    ]
    assert "then back" in rows[1] or "in every round" in rows[1]
    assert "the connection was lost" in rows[2]
    assert any("Watch: http://127.0.0.1" in line for line in printed)


def test_a_pilot_in_which_a_fault_was_not_shown_has_failed(tmp_path: Path) -> None:
    one = pilot.Pilot(pilot.PilotSite(tmp_path, 2, 0), pilot.SHORT, None, print)
    one.seen = [pilot.Seen(pilot.SHORT[0], 1.0), pilot.Seen(pilot.SHORT[1], 2.0, "it moved", 3.0)]
    one.judge()
    assert one.problems == ["power cut: the product showed nothing"]
    assert "| **nothing** | never |" in pilot.table(one.seen, one.problems)


def test_a_seed_always_gives_the_same_plan_and_seeds_differ() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
    assert len({plan(seed).faults for seed in range(50)}) == 50
    assert {plan(seed).method for seed in range(8)} == set(METHODS)


def test_two_hundred_runs_hold_every_kind_of_fault() -> None:
    assert {fault.kind for seed in range(1, 201) for fault in plan(seed).faults} == set(KINDS)


def test_a_kind_of_fault_that_hit_nothing_in_any_run_is_named() -> None:
    one = Outcome(1, "fedavg", EQUAL, 1.0, injected=["cut"], missed=["kill agent", "kill worker"])
    other = Outcome(2, "fedavg", EQUAL, 1.0, injected=["kill worker"], missed=["cut"])
    assert never_hit({1: one, 2: other}) == ["kill agent"]


def test_a_campaign_without_a_run_or_without_a_hit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["chaos", "--table", "--out", str(tmp_path)])
    assert main() == 1
    missed = Outcome(1, "fedavg", EQUAL, 1.0, missed=["cut"])
    (tmp_path / "runs.jsonl").write_text(missed.to_json() + "\n")
    assert main() == 1
    hit = Outcome(1, "fedavg", EQUAL, 1.0, injected=["cut"])
    (tmp_path / "runs.jsonl").write_text(hit.to_json() + "\n")
    assert main() == 0


@given(st.lists(st.integers(0, 400), max_size=6), st.integers(1, 50))
def test_packets_come_out_as_they_went_in_however_the_stream_was_cut(
    lengths: list[int], piece: int
) -> None:
    packets = [b"\x30" + _varint(length) + bytes(length) for length in lengths]
    stream, reader, seen = b"".join(packets), Packets(), list[bytes]()
    for at in range(0, len(stream), piece):
        seen += reader.feed(stream[at : at + piece])
    assert seen == packets


def _varint(length: int) -> bytes:
    parts = []
    while True:
        length, digit = divmod(length, 128)
        parts.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(parts)


def test_a_connection_is_known_by_the_client_id_of_its_first_packet() -> None:
    assert client_id(CONNECT) == "covey"


def test_a_publish_at_qos_1_is_repeated_with_its_flag_and_nothing_else_is() -> None:
    assert once_more(PUBLISH) == b"\x3a" + PUBLISH[1:]
    assert once_more(CONNECT) is None
    assert once_more(b"\x30" + PUBLISH[1:]) is None


def phase(
    round_: int, step: int, *reported: str, ends: bool = True, name: str = "train"
) -> dict[str, object]:
    return {
        "event": "phase",
        "phase": name,
        "round": round_,
        "step": step,
        "ends_round": ends,
        "reported": list(reported),
    }


def test_a_record_in_which_every_round_was_folded_once_with_all_agents_is_right() -> None:
    rows = [
        phase(0, 1, "a", "b", ends=False, name="first"),
        phase(0, 2, "a", "b"),
        phase(1, 3, "a", "b"),
    ]
    assert check.folds(rows, 2, ["a", "b"]) == []


@pytest.mark.parametrize(
    "rows",
    [
        [phase(0, 1, "a", "b")],
        [phase(0, 1, "a", "b"), phase(0, 2, "a", "b")],
        [phase(0, 1, "a", "b"), phase(1, 1, "a", "b")],
        [phase(0, 1, "a", "b"), phase(1, 2, "a")],
        [phase(0, 1, "a", "b"), phase(1, 2, "a", "b", "b")],
    ],
    ids=[
        "a round is missing",
        "one is folded twice",
        "a step twice",
        "an agent is missing",
        "one counts twice",
    ],
)
def test_a_record_that_is_wrong_is_found_out(rows: list[dict[str, object]]) -> None:
    assert check.folds(rows, 2, ["a", "b"])


def test_an_accepted_report_that_no_fold_used_is_found_out() -> None:
    rows = [phase(0, 1, "a"), {"event": "void", "step": 3}]
    told: list[dict[str, object]] = [
        {"event": "run", "agent": "a", "run": "r"},
        {"event": "accepted", "agent": "a", "step": 1},
    ]
    assert check.accepted(rows, told, ["r"]) == []
    assert (
        check.accepted(rows, [*told, {"event": "accepted", "agent": "a", "step": 3}], ["r"]) == []
    )
    assert (
        len(check.accepted(rows, [*told, {"event": "accepted", "agent": "a", "step": 2}], ["r"]))
        == 1
    )
    assert (
        check.accepted(rows, [*told, {"event": "accepted", "agent": "a", "step": 2}], ["other"])
        == []
    )


def test_a_crash_is_found_in_a_log() -> None:
    assert check.crashes('{"event": "up"}\n{"event": "down"}\n') == []
    crash = "Exception in callback x(3)>\nTraceback (most recent call last):\n  a line\nOSError: [Errno 9]\n"
    assert len(check.crashes('{"event": "up"}\n' + crash)) == 1
