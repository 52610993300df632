import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.broker.cli.program import app
from covey.broker.limits import MAX_PACKET_BYTES, Limits
from covey.broker.programs import run as broker_run
from covey.broker.programs.mosquitto import Mosquitto, answers
from covey.shared.errors import UserError
from tests import brokers
from tests.certificates import Authority
from tests.processes import free_ports, needs_mosquitto

ROOT = Path(__file__).resolve().parents[2]
doctor = CliRunner().invoke


@contextmanager
def up(*options: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, object]]]:
    """`broker up` on a free port, and the JSON that it prints."""
    command = [sys.executable, "-m", "covey.broker.cli", "up", "--port", "0", "--json", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_the_doctor_passes_the_embedded_broker_and_measures_it(
    broker_url: Callable[[str], str],
) -> None:
    result = doctor(app, ["doctor", broker_url("embedded"), "--patience-s", "60", "--json"])
    assert result.exit_code == 0, result.output
    findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert len(findings) == 13
    assert {finding["state"] for finding in findings.values()} == {"ok"}
    assert findings["largest payload"]["value"] == 8 << 20
    assert findings["throughput"]["value"] > 0


@pytest.mark.whole
@pytest.mark.broker
@needs_mosquitto
def test_the_doctor_reports_what_a_broker_refuses() -> None:
    with brokers.hosted(
        lambda: Mosquitto(config=f"{brokers.STOCK}message_size_limit 100000\n")
    ) as url:
        result = doctor(app, ["doctor", url, "--patience-s", "5", "--json"])
    assert result.exit_code == 1
    found = {finding["check"]: finding for finding in json.loads(result.stdout)}
    assert {check for check, finding in found.items() if finding["state"] == "missing"} == {
        "throughput"
    }
    assert "40 messages of 250 kB did not arrive" in found["throughput"]["seen"]
    assert "message_size_limit" in found["throughput"]["means"]
    assert "wire.part_bytes" in found["largest payload"]["means"]


@pytest.mark.whole
def test_the_doctor_exits_with_1_if_no_broker_listens() -> None:
    (port,) = free_ports(1)
    result = doctor(app, ["doctor", f"mqtt://127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert "missing" in result.stdout


@pytest.mark.whole
@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor"],
        ["doctor", "http://localhost"],
        ["up", "--user", "ann"],
        ["up", "--tls-cert", "nowhere.pem"],
        ["up", "--password-file", "nowhere"],
        ["up", "--embedded", "--data", "somewhere"],
    ],
)
def test_a_mistake_is_one_message_on_stderr_and_exit_code_2(arguments: list[str]) -> None:
    result = doctor(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize(
    "way", [["--embedded"], pytest.param([], marks=[pytest.mark.broker, needs_mosquitto])]
)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--tls-cert", "rubbish", "--tls-key", "good.key"], "rubbish"),
        (["--tls-cert", "good.pem", "--tls-key", "ca.key"], "ca.key"),
        (
            ["--tls-cert", "good.pem", "--tls-key", "good.key", "--tls-ca", "rubbish"],
            "--tls-ca rubbish",
        ),
        (["--log", "nodir/x.log"], "--log nodir/x.log"),
        (["--log", "."], "--log ."),
        (["--password-file", "rubbish"], "rubbish, line 1"),
        (["--data", "rubbish"], "rubbish: "),
    ],
)
def test_an_unusable_file_is_named_before_the_broker_reports_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: list[str], options: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Authority(tmp_path).sign("good")
    Path("rubbish").write_text("rubbish\n")
    result = doctor(app, ["up", "--port", "0", *way, *options])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.broker
@needs_mosquitto
async def test_the_log_of_mosquitto_is_shown_if_it_does_not_start() -> None:
    with pytest.raises(UserError, match="Unknown configuration variable"):
        await Mosquitto(config="listener {port} 127.0.0.1\nnonsense true\n").__aenter__()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("option", "number", "expected"),
    [
        ("--max-packet", "999999999999", "at most 268435455 bytes"),
        ("--memory", "9" * 30, "omit it for half of the machine's memory"),
        ("--agents", "999999999999", "divide a larger fleet over several brokers"),
    ],
)
def test_a_limit_that_no_broker_can_apply_is_refused(
    option: str, number: str, expected: str
) -> None:
    result = doctor(app, ["up", "--embedded", "--port", "0", option, number])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {option} {number}: expected at most ")
    assert expected in result.stderr


def test_the_longest_packet_for_a_large_fleet_is_one_that_mqtt_has() -> None:
    assert Limits(agents=1_000_000).packet_bytes == MAX_PACKET_BYTES


@pytest.mark.broker
@needs_mosquitto
async def test_a_tls_listener_counts_as_ready_only_once_it_shakes_hands() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert not await answers("127.0.0.1", port, tls=True)
    server.close()


@pytest.mark.whole
@pytest.mark.parametrize("options", [["--embedded"], []])
def test_a_broker_without_storage_refuses_a_folder_for_data(
    options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("covey.broker.programs.run.find", lambda: None)
    result = doctor(app, ["up", "--data", str(tmp_path / "kept"), *options])
    assert result.exit_code == 2
    assert "keeps nothing on disk" in result.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("options", [["--embedded"], pytest.param([], marks=pytest.mark.broker)])
def test_broker_up_ends_with_its_standard_input(options: list[str]) -> None:
    with up("--until-stdin-closes", *options) as (process, said):
        assert set(said) == {"url", "broker", "pid"}
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
        assert not Path(f"/proc/{said['pid']}").exists()


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_broker_up_ends_cleanly_when_terminated(number: signal.Signals) -> None:
    with up("--embedded") as (process, _):
        process.send_signal(number)
        assert process.wait(60) == 0


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("options", [["--embedded"], pytest.param([], marks=pytest.mark.broker)])
async def test_no_broker_outlives_a_killed_broker_up(options: list[str]) -> None:
    with up(*options) as (process, said):
        process.kill()
        async with asyncio.timeout(60):
            while _alive(str(said["pid"])):  # noqa: ASYNC110  not our child, so we cannot wait for it
                await asyncio.sleep(0.05)


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_ends_while_a_broker_runs_is_shown_every_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a certificate that would end was named at the start alone, and a broker runs for months."""
    monkeypatch.setattr(broker_run, "DAY_S", 0.001)
    found, shown = iter([[], ["it ends in 13 days"], ["it ends in 12 days"]]), list[str]()

    async def days() -> None:
        with contextlib.suppress(StopIteration, RuntimeError):
            await broker_run._warn_daily(lambda: next(found), shown.append)

    asyncio.run(days())
    assert shown == ["it ends in 13 days", "it ends in 12 days"]
