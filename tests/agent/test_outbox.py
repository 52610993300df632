"""The outbox on disk: whatever instant the process dies at, the next one finds the old state or the new one."""

from __future__ import annotations

import contextlib
import errno
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.agent.device.events import Outboxed
from covey.agent.device.outbox import AHEAD, LOST, Outbox, State
from covey.shared.errors import UserError
from covey.shared.wire.format import FORMAT
from covey.shared.wire.messages import digest


class Killed(BaseException):
    """The process is gone."""


def opened(folder: Path) -> Outbox:
    return Outbox(folder, durable=False)


def work(box: Outbox, step: int, text: str) -> None:
    """What a worker leaves behind."""
    report, memory = box.places(step)
    report.write_text(f"report {text}")
    memory.write_text(f"memory {text}")


def put(box: Outbox, step: int, text: str = "", *, with_memory: bool = True) -> None:
    work(box, step, text or str(step))
    report, memory = box.places(step)
    content, kept = report.read_bytes(), digest(memory.read_bytes())
    size = len(content)
    box.put(
        step,
        digest(content),
        size,
        work=b"",
        part_bytes=1024,
        with_memory=with_memory,
        memory_digest=kept,
    )


def seen(folder: Path) -> tuple[Outboxed, str | None, str | None]:
    """What the next process finds: what waits, the report, the memory."""
    with opened(folder) as box:
        report = box.report.read_text() if box.report else None
        memory = box.memory.read_text() if box.memory else None
        return box.outboxed, report, memory


def started(folder: Path) -> Outbox:
    box = opened(folder)
    box.switch("r")
    put(box, 1)
    box.commit(1)
    box.drop(1)
    return box


def test_a_report_and_its_outcome_survive_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        assert (box.state.size, box.state.part_bytes, box.state.digest) == (
            8,
            1024,
            digest(b"report 2").hex(),
        )
    assert seen(tmp_path) == (Outboxed("r", 1, 2), "report 2", "memory 1")


def test_other_users_cannot_read_the_state_of_an_agent(tmp_path: Path) -> None:
    """Its memory is a model of its own data."""
    with opened(tmp_path / "state"):
        pass
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_memory_is_committed_only_on_acceptance(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.drop(2)
    assert seen(tmp_path) == (Outboxed("r", 1, 0), None, "memory 1")
    with opened(tmp_path) as box:
        put(box, 3)
        box.commit(3)
        box.drop(3)
    assert seen(tmp_path) == (Outboxed("r", 3, 0), None, "memory 3")


def test_accepted_work_without_a_new_memory_keeps_the_old_one(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2, with_memory=False)
        box.commit(2)
        box.drop(2)
    assert seen(tmp_path) == (Outboxed("r", 2, 0), None, "memory 1")


def test_files_that_are_no_longer_needed_are_removed_at_once(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.commit(2)
        files = sorted(path.name for path in tmp_path.glob("*-r-*"))
        assert files == ["memory-r-1", "memory-r-2", "report-r-2"]  # until the step is closed
        box.drop(2)
        assert sorted(path.name for path in tmp_path.glob("*-r-*")) == ["memory-r-2"]


def test_the_outcome_of_another_step_changes_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.commit(1)
        box.drop(3)
    assert seen(tmp_path)[0] == Outboxed("r", 1, 2)


def test_another_run_begins_empty_and_the_first_finds_its_files_again(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.switch("other")
    aside = Outboxed("r", 1, 2)
    assert seen(tmp_path) == (Outboxed("other", 0, 0, aside=aside), None, None)
    with opened(tmp_path) as box:
        box.switch("r")
    assert seen(tmp_path) == (Outboxed("r", 1, 2, aside=Outboxed("other")), "report 2", "memory 1")


def test_a_third_run_leaves_no_files_of_the_first(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        box.switch("second")
        box.switch("third")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["format.json", "state.json"]


def test_an_accepted_report_that_is_asked_for_again_waits_with_the_memory_from_before_it(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.commit(2)
    assert seen(tmp_path) == (Outboxed("r", 2, 0, kept=2), "report 2", "memory 2")
    with opened(tmp_path) as box:
        box.go_back(1)
    assert seen(tmp_path) == (Outboxed("r", 1, 2), "report 2", "memory 1")
    with opened(tmp_path) as box:
        box.commit(2)
        box.drop(2)
        assert box.state.lost == ""
    assert seen(tmp_path) == (Outboxed("r", 2, 0), None, "memory 2")


def test_work_that_is_repeated_with_a_later_memory_is_marked(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 4)
        box.commit(4)
        box.drop(4)
        box.go_back(2)
        assert box.state.lost == AHEAD


def test_a_coordinator_that_lost_more_than_the_kept_report_gets_work_with_a_marked_memory(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as box:
        put(box, 3)
        box.commit(3)
        box.drop(3)
        put(box, 4)
        box.commit(4)
        box.go_back(2)
        assert box.state.lost == AHEAD
    assert seen(tmp_path) == (Outboxed("r", 2), None, "memory 3")


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_damaged_report_is_named_and_set_aside(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        assert box.report is not None
        flip(box.report)
        assert not box.report_is_whole()
    with opened(tmp_path) as box:
        assert box.outboxed == Outboxed("r", 1)
        assert any("report-r-2" in why and "damaged" in why for why in box.damaged)
        assert box.memory is not None
    assert (tmp_path / "report-r-2.damaged").exists()


def test_a_damaged_report_that_was_accepted_is_worked_on_again_from_the_memory_before_it(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        box.commit(2)
        assert box.report is not None
        flip(box.report)
    with opened(tmp_path) as box:
        assert box.outboxed == Outboxed("r", 2)
        box.go_back(1)
    assert seen(tmp_path) == (Outboxed("r", 1), None, "memory 1")


def test_memory_that_is_set_aside_stays_readable_for_a_person(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        assert "memory-r-1" in box.set_memory_aside()
        assert (box.memory, box.state.lost) == (None, LOST)
    assert (tmp_path / "memory-r-1.damaged").read_text() == "memory 1"


def test_lost_memory_is_mentioned_until_two_steps_are_accepted(tmp_path: Path) -> None:
    """The first may have been accepted with a report from before the loss."""
    with started(tmp_path) as box:
        box.set_memory_aside()
        mentioned = []
        for step in (2, 3, 4):
            put(box, step)
            mentioned.append(box.state.lost)
            box.commit(step)
            box.drop(step)
    assert mentioned == [LOST, LOST, ""]


def test_a_full_disk_delays_what_is_written_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        with monkeypatch.context() as patch:

            def full(self: Path, *rest: object, **more: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(Path, "open", full)
            box.commit(2)
            assert box.unwritten
            assert box.state.accepted == 2
            assert "no room is left" in box.flush()
        assert newest(tmp_path)["accepted"] == 1
        assert box.flush() == ""
    assert seen(tmp_path)[0] == Outboxed("r", 2, kept=2)


def test_changes_that_are_held_are_one_line_and_the_files_before_it_stay_until_then(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        lines = (tmp_path / "state.json").read_bytes().count(b"\n")
        box.holds = True
        box.commit(2)
        box.drop(2)
        assert newest(tmp_path)["accepted"] == 1
        assert sorted(path.name for path in tmp_path.glob("*-r-*")) == [
            "memory-r-1",
            "memory-r-2",
            "report-r-2",
        ]
        box.flush()
        assert (tmp_path / "state.json").read_bytes().count(b"\n") == lines + 1
        assert sorted(path.name for path in tmp_path.glob("*-r-*")) == ["memory-r-2"]


def test_files_that_a_worker_may_be_writing_now_stay(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        work(box, 3, "under way")
        box.commit(2)
        box.drop(2)
        assert sorted(path.name for path in tmp_path.glob("*-3")) == ["memory-r-3", "report-r-3"]
        put(box, 4)
        assert not list(tmp_path.glob("*-3"))


def test_files_of_cancelled_work_are_removed(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        work(box, 7, "never named")
    seen(tmp_path)
    assert not list(tmp_path.glob("*-7"))


CHANGES: list[Callable[[Outbox], None]] = [
    lambda box: put(box, 3),
    lambda box: box.commit(2),
    lambda box: box.drop(2),
    lambda box: box.switch("other"),
]


@pytest.mark.parametrize("change", CHANGES, ids=["put", "commit", "drop", "forget"])
def test_a_kill_between_any_two_operations_on_files_leaves_the_old_state_or_the_new(
    tmp_path: Path, change: Callable[[Outbox], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(name: str) -> Path:
        with started(tmp_path / name) as box:
            put(box, 2)
        return tmp_path / name

    before, folder = seen(prepared("before")), prepared("after")
    with opened(folder) as box:
        change(box)
    after = seen(folder)
    outcomes = set()
    for fatal in range(1, 12):
        folder = prepared(str(fatal))
        with monkeypatch.context() as patch, opened(folder) as box:
            alive = fatal

            def dying(original: Callable[..., object]) -> Callable[..., object]:
                def operation(self: Path, *args: object, **options: object) -> object:
                    nonlocal alive
                    alive -= 1
                    if alive == 0:
                        raise Killed
                    return original(self, *args, **options)

                return operation

            for name in ("write_text", "open", "replace", "unlink"):
                patch.setattr(Path, name, dying(getattr(Path, name)))
            with contextlib.suppress(Killed):
                change(box)
        found = seen(folder)
        assert found in (before, after)
        outcomes.add(found)
    assert outcomes == {before, after}


def test_a_damaged_state_file_is_set_aside_and_the_agent_starts_empty(tmp_path: Path) -> None:
    started(tmp_path).close()
    (tmp_path / "state.json").write_bytes(b"\0\0\0")
    assert seen(tmp_path) == (Outboxed(), None, None)
    assert (tmp_path / "state.broken").read_bytes() == b"\0\0\0"


@pytest.mark.parametrize("half", [b"", b'{"run": "r', b"\0\0"])
def test_an_agent_whose_very_first_write_was_cut_off_starts_empty(
    tmp_path: Path, half: bytes
) -> None:
    (tmp_path / "state.json.new").write_bytes(half)
    with opened(tmp_path) as box:
        assert (box.state, box.damaged) == (State(), [])
        box.switch("r1")
    with opened(tmp_path) as box:
        assert box.state.run == "r1"


def test_a_state_whose_files_are_missing_does_not_report_them(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
        assert box.report is not None
        box.report.unlink()
    with opened(tmp_path) as box:
        assert box.state == State("r", 1, "memory-r-1", memory_digest=digest(b"memory 1").hex())
    (tmp_path / "memory-r-1").unlink()
    with opened(tmp_path) as box:
        assert box.state == State("r", 1, lost=LOST)
        assert box.memory is None


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UserError, match="in use by another agent"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_line_that_was_cut_off_leaves_the_state_before_it(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        before = box.state
        put(box, 2)
    file = tmp_path / "state.json"
    first, last = file.read_bytes().splitlines(keepends=True)[-2:]
    for cut in range(len(last) - 1):
        file.write_bytes(first + last[:cut])
        with opened(tmp_path) as box:
            assert (box.state, box.damaged) == (before, [])


def test_a_damaged_last_line_is_damage_and_not_the_state_before_it(tmp_path: Path) -> None:
    with started(tmp_path) as box:
        put(box, 2)
    file = tmp_path / "state.json"
    sound = file.read_bytes()
    file.write_bytes(sound[:-9] + b"?" + sound[-8:])
    with opened(tmp_path) as box:
        assert box.state == State()
        assert box.damaged


def test_the_lines_of_a_state_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.agent.device.outbox.MOST_BYTES", 4000)
    with started(tmp_path) as box:
        for step in range(2, 40):
            put(box, step)
            box.commit(step)
            assert (tmp_path / "state.json").stat().st_size < 6000
    assert seen(tmp_path)[0] == Outboxed("r", 39, kept=39)


def test_a_state_with_a_changed_bit_is_damaged_and_never_another_state(tmp_path: Path) -> None:
    with Outbox(tmp_path) as outbox:
        outbox.switch("r1")
        state = outbox.state
    file = tmp_path / "state.json"
    sound = file.read_bytes()
    for place in range(len(sound)):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with Outbox(tmp_path) as outbox:
            assert outbox.state in (state, State())
            assert outbox.state == state or outbox.damaged


def test_a_state_is_refused_to_an_agent_of_another_name(tmp_path: Path) -> None:
    Outbox(tmp_path).close()  # as an earlier version leaves it
    Outbox(tmp_path, agent="g01").close()
    with pytest.raises(UserError, match="state of agent g01, and g11 is started with it"):
        Outbox(tmp_path, agent="g11")
    Outbox(tmp_path).close()  # a look at it changes nothing
    Outbox(tmp_path, agent="g01").close()
    (tmp_path / "format.json").unlink()
    Outbox(tmp_path, agent="g11").close()


def newest(folder: Path) -> dict[str, object]:
    """The last line of the state."""
    line = (folder / "state.json").read_bytes().splitlines()[-1]
    found: dict[str, object] = json.loads(line)
    return found


def write_state(folder: Path, changes: dict[str, object]) -> bytes:
    """The state with these keys, and a right seal: what another version writes."""
    tree = newest(folder) | changes
    del tree["seal"]
    tree["seal"] = digest(json.dumps(tree, sort_keys=True).encode()).hex()
    (folder / "state.json").write_bytes(json.dumps(tree).encode() + b"\n")
    return (folder / "state.json").read_bytes()


def with_a_report(folder: Path) -> set[str]:
    with started(folder) as box:
        put(box, 1)
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("changes", [{"newkey": 1}, {"step": "1"}, {"aside": {"newkey": 1}}])
def test_a_whole_state_of_another_version_is_refused_and_nothing_of_it_is_touched(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    files = with_a_report(tmp_path)
    content = write_state(tmp_path, changes)
    for _ in range(2):  # a refusal holds no lock
        with pytest.raises(UserError, match="this agent's memory was begun with Covey"):
            opened(tmp_path)
    assert (tmp_path / "state.json").read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == files


def test_a_folder_of_another_format_is_refused_with_the_version_that_wrote_it(
    tmp_path: Path,
) -> None:
    files = with_a_report(tmp_path)
    (tmp_path / "format.json").write_text('{"format": 99, "covey": "9.9.9"}')
    with pytest.raises(UserError, match=r"Covey 9\.9\.9 \(format 99\).*Nothing was changed"):
        opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == files


def test_an_agent_that_was_upgraded_keeps_its_former_state_aside_and_begins_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = with_a_report(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files if (tmp_path / name).is_file()}
    monkeypatch.setattr("covey.agent.device.outbox.FORMAT", FORMAT + 1)
    with Outbox(tmp_path, durable=False) as box:
        assert box.state == State()
        [said] = box.damaged
    assert f"(format {FORMAT}); what it had for an earlier run is kept in format-{FORMAT}" in said
    kept = tmp_path / f"format-{FORMAT}"
    aside = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert aside == {name: before[name] for name in aside}
    assert {"state.json", "format.json"} <= aside.keys()
    assert len([name for name in aside if name.startswith("report-")]) == 1
    with Outbox(tmp_path, durable=False) as again:
        assert again.damaged == []


def test_a_folder_from_before_the_number_is_taken_up(tmp_path: Path) -> None:
    with_a_report(tmp_path)
    (tmp_path / "format.json").unlink()
    assert seen(tmp_path)[1] == "report 1"


def test_the_state_itself_has_no_key_that_an_agent_from_before_the_number_calls_damage(
    tmp_path: Path,
) -> None:
    with_a_report(tmp_path)
    tree = newest(tmp_path)
    assert tree.keys() - {"seal", "aside"} <= State.__dataclass_fields__.keys()
