"""Keys of secure sums: devices make them, and the fleet key of a broker's folder signs entries for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.broker.access.acl import ANY
from covey.broker.cli.program import app as broker
from covey.extras.secure.derivation import signed_of_entry, signed_of_expelled
from covey.extras.secure.messages import Entry, Expelled
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.primitives import is_signed
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.users.folder import FLEET_KEY, BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt import credentials


@pytest.fixture
def home(tmp_path: Path) -> BrokerFolder:
    return BrokerFolder.create(tmp_path / "home", ["localhost"], 8883)


def test_the_commands_give_a_device_an_entry_for_its_own_key(
    tmp_path: Path, home: BrokerFolder
) -> None:
    state = tmp_path / "state"
    made = CliRunner().invoke(agent, ["lab", "keys", "--id", "pi-7", "--state", str(state)])
    again = CliRunner().invoke(agent, ["lab", "keys", "--id", "pi-7", "--state", str(state)])
    key = made.output.strip()
    assert made.output == again.output
    line = ["enroll", "pi-7", "--home", str(home.folder), "--key", key]
    assert CliRunner().invoke(broker, line).exit_code == 0
    own = credentials.read(home.file("pi-7"))
    entry = Entry.from_bytes(own.entry)
    assert (entry.agent, entry.federation, entry.key.hex()) == ("pi-7", "default", key)
    assert is_signed(own.fleet, entry.signature, signed_of_entry(entry))
    assert entry.since <= time.time() <= entry.until
    folder = state / "secure"
    assert SecureFolder.of_device(folder, OwnersPolicy()) is None
    SecureFolder.take_entry(folder, own.entry, own.fleet)
    device = SecureFolder.of_device(folder, OwnersPolicy())
    assert device is not None
    assert device.agent.identity.entry == own.entry


def test_the_secret_of_a_device_is_its_owners_alone(tmp_path: Path) -> None:
    SecureFolder.signing_key(tmp_path / "secure")
    [secret] = (tmp_path / "secure").iterdir()
    assert secret.stat().st_mode & 0o077 == 0


def test_new_credentials_have_a_new_entry_for_the_same_key(home: BrokerFolder) -> None:
    home.enroll_all(["pi-7"], key=bytes(range(32)))
    before = Entry.from_bytes(credentials.read(home.file("pi-7")).entry)
    home.rotate("pi-7")
    after = Entry.from_bytes(credentials.read(home.file("pi-7")).entry)
    assert (after.key, after.serial > before.serial) == (before.key, True)


def test_a_user_without_a_key_has_no_entry(home: BrokerFolder) -> None:
    home.enroll("pi-7")
    assert credentials.read(home.file("pi-7")).entry == b""


def test_a_fleet_key_that_lies_elsewhere_is_named(home: BrokerFolder) -> None:
    (home.folder / FLEET_KEY).unlink()
    with pytest.raises(UserError, match="the fleet key is not here"):
        home.enroll_all(["pi-7"], key=bytes(32))
    home.enroll("pi-8")


@pytest.mark.parametrize(
    ("users", "federation", "key"),
    [
        (["pi-7", "pi-8"], "default", bytes(32)),
        (["pi-7"], ANY, bytes(32)),
        (["pi-7"], "default", b"short"),
    ],
)
def test_a_key_is_for_one_user_of_one_federation(
    home: BrokerFolder, users: list[str], federation: str, key: bytes
) -> None:
    with pytest.raises(UserError, match="--key"):
        home.enroll_all(users, federation=federation, key=key)
    assert set(home.entries()) == {"coordinator"}


def test_other_devices_get_the_signed_list_of_expelled_entries(
    tmp_path: Path, home: BrokerFolder
) -> None:
    for number, name in enumerate(("pi-7", "pi-8")):
        home.enroll_all([name], key=bytes([number]) * 32)
    gone, password = (credentials.read(home.file(name)) for name in ("pi-7", "pi-8"))
    home.expel("pi-7")
    made = CliRunner().invoke(broker, ["lab", "sign", "--home", str(home.folder)])
    assert made.output == f"{home.file('pi-8')}\n"
    own = credentials.read(home.file("pi-8"))
    assert (own.broker, own.entry) == (password.broker, password.entry)
    expelled = Expelled.from_bytes(own.expelled)
    assert expelled.serials == [Entry.from_bytes(gone.entry).serial]
    assert is_signed(own.fleet, expelled.signature, signed_of_expelled(expelled))
    SecureFolder.signing_key(tmp_path)
    SecureFolder.take_entry(tmp_path, own.entry, own.fleet, own.expelled)
    device = SecureFolder.of_device(tmp_path, OwnersPolicy())
    assert device is not None
    assert device.state().expelled == own.expelled
    assert home.sign() == []
    home.enroll_all(["pi-9"], key=bytes(32))
    assert credentials.read(home.file("pi-9")).expelled == own.expelled


def test_a_list_waits_for_a_fleet_key_that_lies_elsewhere(home: BrokerFolder) -> None:
    for number, name in enumerate(("pi-7", "pi-8")):
        home.enroll_all([name], key=bytes([number]) * 32)
    (home.folder / FLEET_KEY).rename(home.folder / "offline")
    said = CliRunner().invoke(broker, ["expel", "pi-7", "--home", str(home.folder)])
    assert "run `broker lab sign` where the fleet key is" in said.output
    with pytest.raises(UserError, match="bring it back to sign what waits for it"):
        home.sign()
    (home.folder / "offline").rename(home.folder / FLEET_KEY)
    assert home.sign() == [home.file("pi-8")]


def test_an_entry_that_ends_soon_is_signed_again(
    home: BrokerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.enroll_all(["pi-7"], key=bytes(range(32)))
    before = Entry.from_bytes(credentials.read(home.file("pi-7")).entry)
    assert home.sign() == []
    later = time.time() + 70 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert home.sign() == [home.file("pi-7")]
    after = Entry.from_bytes(credentials.read(home.file("pi-7")).entry)
    assert after.key == before.key
    assert after.until - before.until == pytest.approx(70 * 86_400, abs=2)


def test_an_old_folder_without_a_fleet_key_gets_one(home: BrokerFolder) -> None:
    (home.folder / FLEET_KEY).unlink()
    home.enroll("pi-7")
    assert home.sign() == []
    assert (home.folder / FLEET_KEY).stat().st_mode & 0o077 == 0
    home.enroll_all(["pi-8"], key=bytes(32))
