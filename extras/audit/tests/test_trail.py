"""A run's audit log: what is in it, that it changes nothing, and that `coordinator lab audit` finds what was changed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.coordinator.record.audit_trail import FILE, Trail
from covey.coordinator.run.run import Run
from covey.coordinator.view.printed import show
from covey.extras.audit.audit import audit_table
from covey.extras.audit.check import check, verify
from covey.shared.errors import DecodeError, UserError
from covey.shared.wire.messages import DIGEST_BYTES
from tests.kit.small_run import begun, fingerprint, in_process, rules, scenario, setup

KEY = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole small run."""
    folder = tmp_path_factory.mktemp("finished")
    in_process(folder, scenario("fedavg"))
    return folder


def records(folder: Path, event: str = "") -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / FILE).read_text().splitlines())
    return [line for line in lines if event in ("", line["event"])]


def copied(finished: Path, folder: Path) -> Path:
    """The log and the checkpoint of a run."""
    (folder / "checkpoint").mkdir(parents=True)
    for name in (FILE, "checkpoint/manifest.json"):
        (folder / name).write_bytes((finished / name).read_bytes())
    return folder


def audited(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    answer = CliRunner().invoke(app, ["lab", "audit", str(folder), "--json", *options])
    return answer.exit_code, json.loads(answer.stdout)


def test_a_run_leaves_a_chain_of_orders_and_folds_with_a_digest_for_each_report(
    finished: Path,
) -> None:
    order, fold = records(finished, "order")[0]["fields"], records(finished, "fold")[0]["fields"]
    assert order["cohort"] == sorted(order["cohort"])
    assert (order["phase"], order["method"], order["step"]) == ("train", "fedavg", 1)
    assert list(fold["reporters"]) == order["cohort"]
    assert {len(bytes.fromhex(one)) for one in fold["reporters"].values()} == {DIGEST_BYTES}
    assert len(records(finished, "order")) == len(records(finished, "fold"))
    code, found = audited(finished)
    assert (code, found["whole"], found["anchored"]) == (0, True, True)
    assert found["events"]["start"] == found["events"]["finish"] == 1


def test_the_times_of_the_log_stay_on_one_line_in_80_columns(finished: Path) -> None:
    _, found = audited(finished)
    printed = io.StringIO()
    show(Console(width=80, file=printed), audit_table(found))
    first, *_ = printed.getvalue().splitlines()
    assert first.strip() == f"{found['first_time']} to {found['last_time']}"


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [*lines[:4], lines[4].replace(b"agent-", b"agent_", 1), *lines[5:]], 5),
        (lambda lines: [*lines[:4], *lines[5:]], 5),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 5),
        (lambda lines: lines[:-3], -2),
        (lambda lines: [], 1),
    ],
    ids=["a byte", "a line gone", "lines swapped", "the tail cut", "everything gone"],
)
def test_the_command_names_the_first_wrong_line(
    finished: Path, tmp_path: Path, damage: Any, line: int
) -> None:
    folder = copied(finished, tmp_path / "run")
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join(damage(lines)))
    code, found = audited(folder)
    assert code == 1
    assert found["broken_line"] == (line if line > 0 else len(lines) + line)


def test_the_command_reports_a_fault_in_words_for_people(finished: Path, tmp_path: Path) -> None:
    whole = CliRunner().invoke(app, ["lab", "audit", str(finished)])
    assert "is whole" in whole.stdout
    folder = copied(finished, tmp_path / "run")
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1])
    torn = CliRunner().invoke(app, ["lab", "audit", str(folder)])
    assert torn.exit_code == 1
    assert "it is cut short" in torn.stdout


def test_a_log_of_another_run_in_its_place_is_found(finished: Path, tmp_path: Path) -> None:
    scene = scenario("fedavg")
    begun(tmp_path / "run", scene)
    (tmp_path / "run" / FILE).write_bytes((finished / FILE).read_bytes())
    code, found = audited(tmp_path / "run")
    assert (code, found["broken_line"]) == (1, 1)


def test_a_head_that_was_noted_earlier_is_compared(finished: Path) -> None:
    _, found = audited(finished)
    assert audited(finished, "--head", found["head"])[0] == 0
    assert audited(finished, "--head", "3:" + 64 * "0")[0] == 1
    refused = CliRunner().invoke(app, ["lab", "audit", str(finished), "--head", "three"])
    assert refused.exit_code == 2


def test_a_resumed_run_continues_the_same_chain_and_reports_the_torn_line(tmp_path: Path) -> None:
    scene = scenario("fedavg")
    begun(tmp_path, scene)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"event":"acc')  # what a power cut leaves
    assert not check(tmp_path).verdict.whole
    Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
    checked = check(tmp_path)
    assert checked.verdict.whole
    assert checked.verdict.notes == (
        "line 3: an unfinished line of 13 bytes was cut off at a restart",
    )
    assert [line["event"] for line in records(tmp_path)] == [
        "begin",
        "start",
        "log_repaired",
        "resume",
    ]


def test_a_resume_over_a_log_that_was_cut_off_leaves_it_broken(tmp_path: Path) -> None:
    scene = scenario("fedavg")
    begun(tmp_path, scene)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes().splitlines(keepends=True)[0])
    Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
    broken = check(tmp_path).verdict.broken
    assert broken is not None
    assert "line 2 once had another hash" in broken.why


def test_with_a_key_a_run_computes_the_same_and_only_the_key_checks_its_log(
    finished: Path, tmp_path: Path
) -> None:
    scene = scenario("fedavg")
    run = begun(tmp_path / "run", scene, audit_key=KEY)
    run.audit.close("end")
    file = tmp_path / "key"
    file.write_bytes(KEY)
    assert audited(tmp_path / "run", "--key", str(file))[0] == 0
    with pytest.raises(UserError, match="was written with a key"):
        check(tmp_path / "run")


def test_the_log_changes_no_byte_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [in_process(tmp_path / "with", scenario("fedavg"))]
    for name in ("note", "blame"):
        monkeypatch.setattr(Trail, name, lambda *_, **__: None)
    runs.append(in_process(tmp_path / "without", scenario("fedavg")))
    assert fingerprint(runs[0]) == fingerprint(runs[1])


def test_refused_reports_are_written_one_by_one_until_they_are_a_flood(tmp_path: Path) -> None:
    now = [0.0]
    trail = Trail(tmp_path, "r1", now=lambda: now[0])
    for i in range(100_000):
        trail.blame("refuse", f"agent-{i % 7}", str(DecodeError("rate", "too many messages")))
    now[0] = 61.0
    trail.note("fold")
    lines = records(tmp_path)
    assert len(lines) == 1 + 20 + 1 + 1
    assert sum(lines[-2]["fields"]["agents"].values()) == 100_000 - 20
    assert (tmp_path / FILE).stat().st_size < 10_000
    assert verify(tmp_path / FILE).whole


def test_the_trail_cuts_text_from_a_peer_to_a_sentence(tmp_path: Path) -> None:
    Trail(tmp_path, "r1").blame("refuse", "agent-1", "x" * 100_000)
    assert (tmp_path / FILE).stat().st_size < 2_000
