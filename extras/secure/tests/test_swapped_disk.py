"""A device whose disk was swapped: what is there again by itself, what is enrolled again, what is refused by name."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from covey.agent.cli.program import app as agent_app
from covey.broker.cli.program import app as broker_app
from covey.extras.in_use.model_dir import read_index
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.users.tests.enrolled import Enrolled
from covey.shared.mqtt import credentials
from tests.e2e.enrolled import data, ended
from tests.processes import needs_mosquitto, rows, until

pytestmark = pytest.mark.processes
USER_ERROR = 2


def swapped(site: Enrolled, name: str) -> None:
    """A new disk: nothing is on it but what an installer puts there, the credentials and the data."""
    shutil.rmtree(site.state(name))
    shutil.rmtree(site.models(name), ignore_errors=True)


@pytest.mark.broker
@needs_mosquitto
def test_with_its_credentials_a_device_on_a_new_disk_is_who_it_was_and_has_the_model_in_use(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        site.broker()
        agents = {name: site.agent(name) for name in ("gw-1", "gw-2")}
        scene = site.scenario(2, strategy={"name": "ditto"}, rounds={"count": 3, "publish": "end"})
        run = site.coordinator("run", scene)
        until(lambda: len(rows(tmp_path / "run")) >= 1, of=run)
        agents["gw-1"].kill()
        swapped(site, "gw-1")
        agents["gw-1"] = site.agent("gw-1")
        assert ended(run) == 0, run.output
        lost = [row["client_state"] for row in rows(tmp_path / "run") if row.get("client_state")]
        assert {"gw-1": "lost"} in lost, "the personal model of Ditto was on the old disk"
        one = until(lambda: read_index(site.models("gw-1")).in_use)

        agents["gw-1"].kill()
        swapped(site, "gw-1")
        agents["gw-1"] = site.agent("gw-1")
        again = until(lambda: read_index(site.models("gw-1")).in_use, of=agents["gw-1"])
        assert again.version.name == one.version.name

        # the old disk is alive elsewhere
        twin = site.agent("gw-1", state=tmp_path / "old-disk")
        assert ended(twin) == USER_ERROR
        assert "gw-1" in twin.output.splitlines()[-1]
        assert agents["gw-1"].process.poll() is None


def test_without_its_credentials_a_device_needs_a_copy_or_new_ones(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        file = site.home.enroll("gw-1")
        start = ["start", "--data", tmp_path / "gw.csv", "--credentials", tmp_path / "gone.pem"]
        refused = site.typed(agent_app, *start)
        assert refused.exit_code == USER_ERROR
        said = " ".join(refused.stderr.split())
        assert f"{tmp_path}/gone.pem: No such file or directory; expected the file that" in said
        again = site.typed(broker_app, "enroll", "gw-1", "--home", site.home.folder)
        assert again.exit_code == USER_ERROR
        assert str(file) in again.stderr
        assert "broker lab rotate gw-1" in again.stderr


def test_a_device_without_the_key_of_its_entry_is_refused_and_enrolled_again(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        state = site.state("gw-1")
        key = SecureFolder.signing_key(state / "secure")
        [file] = site.home.enroll_all(["gw-1"], key=key)
        shutil.rmtree(state)
        words = ["start", "--data", data(tmp_path, 1), "--state", state, "--credentials"]
        refused = site.typed(agent_app, *words, file)
        assert refused.exit_code == USER_ERROR
        said = " ".join(refused.stderr.split())
        assert "for a signing key that is not in" in said

        # what the message names
        home = ["--home", site.home.folder]
        assert "`broker expel gw-1`" in said
        assert site.typed(broker_app, "expel", "gw-1", *home).exit_code == 0
        assert "`agent lab keys --id gw-1`" in said
        new = site.typed(agent_app, "lab", "keys", "--id", "gw-1", "--state", state).stdout.strip()
        assert new != key.hex()
        assert "`broker enroll gw-1 --key KEY`" in said
        assert site.typed(broker_app, "enroll", "gw-1", "--key", new, *home).exit_code == 0
        assert SecureFolder.is_of(state / "secure", credentials.read(file).entry)
