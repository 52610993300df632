"""Attacks on a broker's folder: commands that run at once, and names that are none."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from covey.agent.device.systemd import render
from covey.broker.access import passwords
from covey.extras.users.folder import BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt import credentials

OLD = [f"old-{number}" for number in range(15)]
NEW = [f"new-{number}" for number in range(15)]


def _change(folder: Path, name: str, ready: Barrier) -> None:
    ready.wait(60)
    home = BrokerFolder(folder)
    if name in OLD:
        home.expel(name)
    else:
        home.enroll(name)


@pytest.mark.processes
def test_enrolling_and_expelling_at_once_loses_nothing_of_one_another(tmp_path: Path) -> None:
    """Thirty processes at once. Before: 16 of 30 expelled agents were back, each in the list that another one wrote."""
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], 8883)
    home.enroll_all(OLD)
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(len(OLD) + len(NEW))
    workers = [
        context.Process(target=_change, args=(home.folder, name, ready)) for name in OLD + NEW
    ]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 120
    for worker in workers:
        worker.join(max(end - time.monotonic(), 0))
        worker.kill()  # one that hangs fails the test
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    assert set(passwords.read(home.passwords)) == {"coordinator", *NEW}
    assert set(home.entries()) == {"coordinator", *NEW}


@pytest.mark.parametrize("name", ["pi\nExecStartPre=/bin/sh -c id", "pi/../x", "pi\x1b[2J", "+"])
def test_an_id_in_credentials_is_a_name_or_refused(name: str, tmp_path: Path) -> None:
    """Before: the newline became a line of its own in the systemd unit, run as root."""
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], 8883)
    file = tmp_path / "evil.pem"
    file.write_text(credentials.render(name, home.url, (home.folder / "ca.pem").read_text()))
    with pytest.raises(UserError, match="expected one that `broker enroll` wrote"):
        credentials.read(file)


@pytest.mark.parametrize(
    "command", [["agent", "start\nExecStartPre=/bin/sh"], ["agent", "start\r"]]
)
def test_a_line_break_never_gets_into_a_unit_file(command: list[str]) -> None:
    with pytest.raises(UserError, match="line breaks or control characters"):
        render("pi", command, "root")
