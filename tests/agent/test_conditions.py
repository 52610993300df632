"""When a device may work: conditions, readings, threads and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from covey.agent.cli import options, program
from covey.agent.conditions import Readings, is_charging, unmet, validated
from covey.agent.device import events as e
from covey.agent.device.readings import read
from covey.agent.device.session import Session
from covey.agent.policy import OwnersRules, Policy, PolicyError, memory_mb
from covey.agent.worker.process import WorkerOptions, prepared, strictest_limit
from covey.shared.errors import UserError
from covey.shared.programs.child import environment
from tests.agent.orders import order, ref
from tests.agent.sessions import up

MB = 1 << 20
NOW = Readings(charging=True, load=0.1, minute=23 * 60)


@pytest.mark.parametrize(
    ("conditions", "readings", "why"),
    [
        ([], NOW, ""),
        (["charging", "idle", "22:00-06:00"], NOW, ""),
        (["charging"], Readings(False, 0, 0), "not now: the device is not charging"),
        (["idle"], Readings(True, 0.51, 0), "not now: the device is busy (load 0.5 per core)"),
        (["22:00-06:00"], Readings(True, 0, 6 * 60), "not now: it is outside 22:00-06:00"),
        (["22:00-06:00"], Readings(True, 0, 6 * 60 - 1), ""),
        (["22:00-06:00"], Readings(True, 0, 22 * 60), ""),
        (["09:30-17:00"], Readings(True, 0, 9 * 60 + 29), "not now: it is outside 09:30-17:00"),
        (["09:30-17:00"], Readings(True, 0, 9 * 60 + 30), ""),
        (
            ["09:00-17:00", "12:00-13:00"],
            Readings(True, 0, 600),
            "not now: it is outside 12:00-13:00",
        ),
    ],
)
def test_all_conditions_must_hold(conditions: list[str], readings: Readings, why: str) -> None:
    assert unmet(conditions, readings) == why


@pytest.mark.parametrize(
    "text", ["", "Charging", "24:00-01:00", "9:00-10:00", "10:00", "07:00-07:00"]
)
def test_another_condition_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected charging, idle or hours of the day"):
        validated(text)
    done = CliRunner().invoke(program.app, ["lab", "policy", "--only-when", text])
    assert done.exit_code == 2
    assert "only_when" in done.stderr


@pytest.mark.parametrize(
    ("supplies", "charging"),
    [
        ({}, True),  # no battery: it runs on the mains
        ({"BAT0": ("Battery", "Discharging", "")}, False),
        ({"BAT0": ("Battery", "Charging", "")}, True),
        ({"BAT0": ("Battery", "Discharging", ""), "AC": ("Mains", "", "1")}, True),
        ({"BAT0": ("Battery", "Discharging", ""), "AC": ("Mains", "", "0")}, False),
        ({"mouse": ("Battery", "Discharging", "")}, True),
    ],
)
def test_power_is_read_as_the_kernel_shows_it(
    supplies: dict[str, tuple[str, str, str]], charging: bool, tmp_path: Path
) -> None:
    for name, (kind, status, online) in supplies.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "type").write_text(f"{kind}\n")
        if status:
            (folder / "status").write_text(f"{status}\n")
        if online:
            (folder / "online").write_text(f"{online}\n")
        if name == "mouse":
            (folder / "scope").write_text("Device\n")
    readings = read(tmp_path)
    assert readings.charging == charging
    assert 0 <= readings.minute < 24 * 60
    assert readings.load >= 0
    assert is_charging([])


def problem(session: Session) -> str | None:
    return session.status.problem


def test_an_order_waits_until_the_conditions_hold_and_others_read_why() -> None:
    session = up(models=[ref().digest])
    actions = session.handle(e.ConditionsSeen("not now: x"), 0.0)
    assert e.Notify("not now: x") in actions
    assert e.PublishStatus(session.status) in actions
    assert problem(session) == "not now: x"
    waiting = session.handle(e.OrderSeen(order(1, ref())), 1.0)
    assert not any(isinstance(action, e.StartWork | e.ReportFailure) for action in waiting)
    assert not session.status.busy
    started = session.handle(e.ConditionsSeen(""), 60.0)
    assert e.StartWork(order(1, ref())) in started
    assert problem(session) is None


def test_work_that_has_begun_is_finished_and_reported_before_the_agent_stays_out() -> None:
    session = up(models=[ref().digest])
    session.handle(e.OrderSeen(order(1, ref())), 0.0)
    session.handle(e.ConditionsSeen("not now: x"), 1.0)
    assert session.status.busy
    assert problem(session) is None
    session.handle(e.WorkDone(1), 2.0)
    session.handle(e.Sent(1), 2.0)
    assert problem(session) is None
    session.handle(e.OrderSeen(order(2, ref(), accepted=1, closed=1)), 3.0)
    assert problem(session) == "not now: x"


def test_the_options_become_keys_of_the_policy(tmp_path: Path) -> None:
    options = ["--memory-limit", "2G", "--only-when", "idle", "--only-when", "22:00-06:00"]
    done = CliRunner().invoke(
        program.app, ["lab", "policy", *options, "--json"], catch_exceptions=False
    )
    policy = Policy.model_validate_json(done.stdout)
    assert policy.memory_limit_mb == 2048
    assert policy.only_when == ("idle", "22:00-06:00")
    line = ["lab", "service", "--data", str(tmp_path), "--id", "pi", "--threads", "2", *options]
    unit = CliRunner().invoke(program.app, line, catch_exceptions=False).stdout
    for words in ("--memory-limit 2G", "--only-when idle --only-when 22:00-06:00", "--threads 2"):
        assert words in unit


@pytest.mark.parametrize("text", ["", "512", "M", "-1M", "1.5G", "1T", "0M"])
def test_another_size_of_memory_is_refused(text: str) -> None:
    done = CliRunner().invoke(program.app, ["lab", "policy", "--memory-limit", text])
    assert done.exit_code == 2
    assert "memory" in done.stderr


def test_sizes_of_memory_have_a_unit() -> None:
    assert memory_mb("512m") == 512
    with pytest.raises(UserError, match="such as 512M"):
        memory_mb("512")


def test_the_lower_limit_counts_and_one_below_torch_itself_is_named() -> None:
    both = Policy(max_memory_mb=100, memory_limit_mb=400)
    assert strictest_limit(both, 200 * MB) == (300 * MB, "max_memory_mb")
    assert strictest_limit(both, 350 * MB) == (400 * MB, "memory_limit_mb")
    assert strictest_limit(both, 0) == (400 * MB, "memory_limit_mb")
    with pytest.raises(PolicyError, match="torch alone takes 500 MB of the allowed 400 MB"):
        strictest_limit(both, 500 * MB)


def test_a_limit_that_this_system_cannot_measure_is_refused_with_another_one() -> None:
    with pytest.raises(PolicyError, match="set memory_limit_mb instead"):
        strictest_limit(Policy(max_memory_mb=100), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA covers mappings on Linux")
def test_data_that_does_not_fit_into_memory_is_a_refusal_with_a_name() -> None:
    code = (
        "from covey.agent.policy import OwnersRules, Policy, PolicyError\n"
        "from covey.agent.worker.process import memory_limited\n"
        "try:\n"
        "    with memory_limited(OwnersRules(Policy(memory_limit_mb=200)), threads=None):\n"
        "        bytearray(1 << 30)\n"
        "except PolicyError as error:\n"
        "    print(error, len(bytearray(1 << 28)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "memory_limit_mb: the work takes more than the allowed 200 MB 268435456" in done.stdout


def test_threads_are_the_cores_but_one_and_one_without_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores, threads in ((1, 1), (2, 1), (4, 3)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        assert options.default_threads() == threads
    before = torch.get_num_threads()
    try:
        for words, threads in ((["--threads", "2"], 2), ([], 1)):
            prepared(OwnersRules(), WorkerOptions.parse(words).threads)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
