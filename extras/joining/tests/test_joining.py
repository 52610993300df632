"""`agent join`: a code gives the credentials of one device, once, to the one who has the whole code."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.broker.cli.program import app as broker
from covey.extras.joining.codes import SECRET_BYTES, USED, JoinCode, pinned, redeem
from covey.extras.joining.handing_over import Codes, JoinServer, hand_over
from covey.extras.users.folder import BrokerFolder
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import read

FILES = {"pi-7": b"the file of pi-7", "pi-8": b"the file of pi-8"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> BrokerFolder:
    folder = tmp_path_factory.mktemp("broker") / "home"
    return BrokerFolder.create(folder, ["localhost"], 8883)


def certificate_of(home: BrokerFolder) -> bytes:
    return pinned(ssl.PEM_cert_to_DER_cert((home.folder / "server.pem").read_text()))


@contextmanager
def desk(home: BrokerFolder, codes: Codes) -> Iterator[tuple[JoinServer, list[tuple[str, bool]]]]:
    taken: list[tuple[str, bool]] = []
    with JoinServer(0, home, codes, lambda user, _, again: taken.append((user, again))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server, taken
        finally:
            server.shutdown()


def test_a_code_comes_by_standard_input_and_stays_out_of_the_command_line(
    home: BrokerFolder, tmp_path: Path
) -> None:
    out = tmp_path / "pi-7.pem"
    program = [sys.executable, "-m", "covey.agent.cli", "join", "-", "--out", str(out)]
    with desk(home, Codes(FILES, time.monotonic() + 60)) as (server, _taken):
        code = f"{code_of(server, home, 'pi-7')}\n"
        done = subprocess.run(program, input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == FILES["pi-7"]
    empty = subprocess.run(program[:-2], input="", capture_output=True, text=True, timeout=60)
    assert (empty.returncode, "not a whole code" in empty.stderr) == (2, True)


def code_of(server: JoinServer, home: BrokerFolder, user: str) -> JoinCode:
    return JoinCode("localhost", server.port, certificate_of(home), server.codes.secrets[user])


def test_a_code_gives_the_credentials_once_and_a_replay_is_noticed_at_both_ends(
    home: BrokerFolder,
) -> None:
    codes = Codes(FILES, time.monotonic() + 60)
    with desk(home, codes) as (server, taken):
        code = JoinCode.parse(str(code_of(server, home, "pi-7")))
        assert redeem(code) == FILES["pi-7"]
        with pytest.raises(UserError, match=r"was used before.*someone else has its credentials"):
            redeem(code)
        assert redeem(code_of(server, home, "pi-8")) == FILES["pi-8"]
    assert taken == [("pi-7", False), ("pi-7", True), ("pi-8", False)]
    assert codes.waiting == set()


def test_a_wrong_secret_and_an_expired_one_get_no_answer(home: BrokerFolder) -> None:
    with desk(home, Codes(FILES, time.monotonic() + 60)) as (server, taken):
        wrong = JoinCode("localhost", server.port, certificate_of(home), bytes(SECRET_BYTES))
        with pytest.raises(UserError, match="does not know the code, or it has expired"):
            redeem(wrong)
    codes = Codes(FILES, until=100.0)
    late = codes.secrets["pi-7"]
    assert codes.take(late, 100.0) == ("", b"")
    assert codes.take(late[:-1], 0.0) == ("", b"")
    assert codes.waiting == set(FILES), "neither is a use of the code"
    assert codes.take(late, 99.9) == ("pi-7", FILES["pi-7"])
    assert codes.take(late, 99.9) == ("pi-7", USED)
    assert taken == []


def test_the_secret_is_sent_to_the_holder_of_the_certificate_alone(
    home: BrokerFolder, tmp_path: Path
) -> None:
    between = BrokerFolder.create(tmp_path / "other", ["localhost"], 8883)
    codes = Codes(FILES, time.monotonic() + 60)
    with desk(between, codes) as (server, taken):
        with pytest.raises(UserError, match="another certificate than the broker that made"):
            redeem(code_of(server, home, "pi-7"))
        assert redeem(code_of(server, between, "pi-7")) == FILES["pi-7"], "the code is still good"
    assert taken == [("pi-7", False)]


def test_a_code_that_is_cut_or_mistyped_is_refused_before_anything_is_sent() -> None:
    code = JoinCode("gateway.local", 8884, bytes(16), b"0123456789abcdef")
    text = str(code)
    assert JoinCode.parse(text) == code
    assert "0123456789abcdef" not in repr(code)
    swapped = text[:20] + ("x" if text[20] != "x" else "y") + text[21:]
    for wrong in ("", "x", text[:-1], text[1:], swapped, text + "AAAA", "é", text.lower()):
        with pytest.raises(UserError, match="not a whole code"):
            JoinCode.parse(wrong)


def test_nobody_who_waits_is_a_users_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UserError, match="broker enroll --join` must still run there"):
        redeem(JoinCode("127.0.0.1", port, bytes(16), bytes(16)))


def test_enroll_prints_a_code_with_which_a_device_writes_its_credentials(
    home: BrokerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    seen = threading.Event()

    def emit(line: str) -> None:
        printed.append(line)
        seen.set()

    monkeypatch.setattr("covey.extras.users.commands._emit", emit)
    results = []
    words = ["enroll", "pi-9", "--home", str(home.folder), "--join", "--join-port", "0"]
    waits = threading.Thread(
        target=lambda: results.append(CliRunner().invoke(broker, words)), daemon=True
    )
    waits.start()
    assert seen.wait(30)
    found = re.fullmatch(r"agent join (\S+)  # pi-9", printed[0])
    assert found is not None
    Path("pi-9.pem").write_text("of another broker")
    done = CliRunner().invoke(agent, ["join", found[1]])
    assert done.exit_code == 0, done.output
    waits.join(30)
    assert results[0].exit_code == 0, results[0].output
    assert read(Path("pi-9-2.pem")).id == "pi-9"
    assert Path("pi-9-2.pem").read_bytes() == home.file("pi-9").read_bytes()
    assert Path("pi-9-2.pem").stat().st_mode & 0o077 == 0
    assert '"join"' in (home.folder / "audit.jsonl").read_text()
    taken = CliRunner().invoke(agent, ["join", found[1], "--out", "pi-9.pem"])
    assert "the file exists" in taken.output


def test_a_user_who_did_not_join_in_time_is_named(home: BrokerFolder) -> None:
    home.enroll("pi-11")
    left = hand_over(
        home,
        {"pi-11": home.file("pi-11")},
        port=0,
        minutes=0.001,
        emit=lambda _: None,
        show=lambda _: None,
    )
    assert left == ["pi-11"]
