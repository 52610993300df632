"""The `agent` command, as its own process where that is the point."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from covey.agent.cli import main
from covey.agent.cli.options import default_name, state_folder
from covey.agent.cli.program import app
from covey.agent.device.display import DeviceDisplay
from covey.agent.device.notices import Connected, Disconnected, FrozenOnce, StoryLine, StorySoFar
from covey.agent.training.models import initial
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import Topics, is_name
from tests.agent.test_worker import data, until
from tests.brokers import start
from tests.kit.scenes import Scenes

MAX_PSS_BYTES = 40e6
SCENES = Scenes.of(
    "s",
    {"features": [1, 8, 8], "classes": 10, "model": {"name": "linear"}},
    seed=5,
    fleet={"agents": 3, "workers": 1, "limit": 120},
)
TOPICS = Topics("default")


def run(*arguments: object) -> str:
    """The output of a command that ends well."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*arguments: object) -> str:
    """What a command prints that ends with exit code 2: one message, no traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def test_a_host_name_becomes_an_agents_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, wanted in {
        "pi-7": "pi-7",
        "büro.local": "b-ro.local",
        "_x y_": "x-y",
        "": "agent",
    }.items():
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert default_name() == wanted
        assert is_name(default_name())


def test_an_agents_state_is_below_xdg_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("~/.local/state/covey/pi").expanduser()
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_folder(None, "pi") == home
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_folder(None, "pi") == home
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    assert state_folder(None, "pi") == Path("/srv/state/covey/pi")
    assert state_folder(None, "pi", "default") == Path("/srv/state/covey/pi")
    assert state_folder(None, "pi", "north") == Path("/srv/state/covey/pi@north")
    assert state_folder(Path("/mine"), "pi", "north") == Path("/mine")


def test_several_federations_are_within_the_owners_limits(tmp_path: Path) -> None:
    start = ("start", "--data", data(tmp_path), "--state", tmp_path / "state")
    assert "each federation once" in refusal(*start, "--also", "default")
    assert "--also 'a b'" in refusal(*start, "--also", "a b")
    more = ("--also", "north", "--also", "south")
    limited = refusal(*start, *more, "--limit", "max_federations=2")
    assert "max_federations: 3 federations, at most 2" in limited
    bounded = ("--limit", "privacy={local_epsilon: 2}")
    assert "privacy bounds what the device spends" in refusal(*start, *more, *bounded)
    alone = ("start", "--data", data(tmp_path), "--federation", "north", *bounded)
    assert "give the same --state for each federation" in refusal(*alone)


def test_start_refuses_wrong_options_before_it_connects(tmp_path: Path) -> None:
    assert "none.csv: no such file" in refusal("start", "--data", tmp_path / "none.csv")
    fits = data(tmp_path)
    assert "--id 'a b'" in refusal("start", "--data", fits, "--id", "a b")
    assert "begins with 'http'" in refusal("start", "--data", fits, "--broker", "http://x")


def test_frozen_layers_that_compute_once_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    DeviceDisplay(stamp=lambda: "12:00 ")(FrozenOnce(3, 400))
    shown = "12:00 step 3: frozen layers computed once for 400 samples; all epochs train on that"
    assert capsys.readouterr().out.splitlines() == [shown]


def test_a_connection_error_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = DeviceDisplay(stamp=lambda: "12:00 ")
    for _ in range(3):
        show(Disconnected("mqtt://x: refused"))
    show(Disconnected("mqtt://x: not authorised"))
    show(Connected())
    show(Disconnected("mqtt://x: gone"))
    assert capsys.readouterr().err.splitlines() == [
        "12:00 no connection to mqtt://x: refused; trying again until it works",
        "12:00 no connection to mqtt://x: not authorised; trying again until it works",
        "12:00 no connection to mqtt://x: gone; trying again until it works",
    ]


def test_a_story_is_shown_line_by_line_without_escape_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (StoryLine("2026-01-31T12:00:00+00:00", "Lost the connection: \x1b[2J"),)
    DeviceDisplay()(StorySoFar(lines))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "what happened so far:"
    assert second.startswith("  2026-01-31T12:00:00+00:00  Lost the connection: ")
    assert "\x1b" not in second


@pytest.mark.whole
def test_check_shows_the_data_and_what_the_coordinator_receives(tmp_path: Path) -> None:
    found = json.loads(run("check", "--data", data(tmp_path), "--json"))
    assert (found["samples"], found["test_samples"], found["problems"]) == (32, 8, [])
    assert found["told"]["labels"] == ["0", "1"]
    assert "training samples" in run("check", "--data", data(tmp_path))


@pytest.mark.whole
def test_check_exits_with_2_if_the_data_does_not_fit(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["check", "--data", str(data(tmp_path)), "--scenario", str(SCENES.written(tmp_path))]
    )
    assert result.exit_code == 2
    assert "samples have shape [4]" in result.output
    assert CliRunner().invoke(app, ["check", "--data", str(tmp_path / "none.npz")]).exit_code == 2


def test_model_writes_as_many_starts_as_the_method_needs_each_from_its_own_stream(
    tmp_path: Path,
) -> None:
    path = SCENES.written(tmp_path)
    run("lab", "model", path, "--out", tmp_path / "deep" / "start.npz")
    task = Scenario.model_validate(yaml.safe_load(path.read_text())).task
    with np.load(tmp_path / "deep" / "start.npz", allow_pickle=False) as file:
        starts, layout = file["starts"], Layout.from_wire(json.loads(str(file["layout"])))
    assert starts.dtype == np.float32
    for j, vector in enumerate(starts):
        wanted, meant = initial(task, entropy(5, "init", j))
        assert np.array_equal(vector, wanted)
        assert layout == meant
    assert len(starts) == Scenario.model_validate(yaml.safe_load(path.read_text())).strategy.starts


def test_a_user_error_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    import subprocess

    command = [
        sys.executable,
        "-m",
        "covey.agent.cli",
        "start",
        "--data",
        str(tmp_path / "none.csv"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --data")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lab model scenario.yaml --out file/x", "file: this is a file, expected a folder"),
        ("lab model scenario.yaml --out folder", "folder: this is a folder, expected a file"),
        ("start --data data.npz --state file", "file: this is a file, expected a folder"),
        (
            "check --data json:loads",
            "data source 'json:loads': called with a path it raised TypeError",
        ),
    ],
)
def test_a_wrong_argument_is_one_message(
    line: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agent", *line.split()])
    SCENES.written(tmp_path)
    data(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert len(said.splitlines()) == 1


@asynccontextmanager
async def program(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "covey.agent.cli",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def statuses(url: str, agents: int) -> dict[str, AgentStatus]:
    """The statuses of this many agents, once all are online."""
    said: dict[str, AgentStatus] = {}
    async with asyncio.timeout(60), MqttLink(url, client_id="ear") as link:
        async for incoming in link.incoming():
            if isinstance(incoming, Up):
                await link.subscribe([TOPICS.every_status])
            elif isinstance(incoming, Received):
                status = AgentStatus.from_bytes(incoming.payload)
                said[status.agent] = status
            if sum(status.online for status in said.values()) == agents:
                return said
    raise AssertionError("the link ended")


def pss_bytes(pid: int) -> int:
    """Memory of a process, shared pages divided among those who share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def maps(pid: int) -> str:
    """The files that a process has mapped, libraries among them."""
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture(params=["mosquitto", "embedded"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with start(request.param, tmp_path) as url:
        yield url


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's measure")
async def test_an_idle_agent_needs_at_most_40_mb_and_announces_its_end(
    broker: str, tmp_path: Path
) -> None:
    options = (
        "--data",
        data(tmp_path),
        "--broker",
        broker,
        "--id",
        "pi",
        "--state",
        tmp_path / "state",
    )
    async with program("start", *options) as agent:
        assert (await statuses(broker, 1))["pi"].online
        used = pss_bytes(agent.pid)
        loaded = maps(agent.pid)
        assert used <= MAX_PSS_BYTES, f"{used / 1e6:.1f} MB"
        assert "numpy" not in loaded
        assert "torch" not in loaded
        agent.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(agent.wait(), 60) == 0
        assert not await online(broker)


@pytest.mark.processes
@pytest.mark.broker
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
async def test_a_running_agent_prints_its_story_on_sigusr1(as_json: bool, tmp_path: Path) -> None:
    options = ("--data", data(tmp_path), "--id", "pi", "--state", tmp_path / "state")
    form = ["--json"] if as_json else []
    with start("mosquitto", tmp_path) as url:
        async with program("start", *options, "--broker", url, *form) as agent:
            assert agent.stdout is not None
            await statuses(url, 1)
            agent.send_signal(signal.SIGUSR1)
            sentence = b""
            while b"Connected to the broker." not in sentence:
                sentence = await asyncio.wait_for(agent.stdout.readline(), 60)
            if as_json:
                assert json.loads(sentence)["event"] == "story"
            agent.send_signal(signal.SIGHUP)  # as a terminal does that is closed
            assert await asyncio.wait_for(agent.wait(), 60) == 0


async def online(url: str) -> bool:
    """Is agent `pi` online? Its status is retained."""
    async with asyncio.timeout(60), MqttLink(url, client_id="ear") as link:
        async for incoming in link.incoming():
            if isinstance(incoming, Up):
                await link.subscribe([TOPICS.status("pi")])
            elif isinstance(incoming, Received):
                return AgentStatus.from_bytes(incoming.payload).online
    raise AssertionError("the link ended")


@pytest.mark.processes
@pytest.mark.broker
async def test_a_fleet_writes_its_partition_brings_its_agents_up_and_ends_on_sigterm(
    tmp_path: Path,
) -> None:
    with start("mosquitto", tmp_path) as url:
        options = ("--broker", url, "--run-dir", tmp_path / "run", "--json")
        async with program("lab", "fleet", SCENES.written(tmp_path), *options) as fleet:
            assert fleet.stdout is not None
            first = json.loads(await asyncio.wait_for(fleet.stdout.readline(), 60))
            assert (first["event"], first["agents"], first["workers"]) == ("fleet", 3, 1)
            with np.load(tmp_path / "run" / "partition.npz", allow_pickle=False) as file:
                assert len(file["train_ptr"]) == 4
            said = await statuses(url, 3)
            assert sorted(said) == ["agent-0", "agent-1", "agent-2"]
            fleet.send_signal(signal.SIGTERM)
            await asyncio.wait_for(fleet.communicate(), 60)
            assert fleet.returncode == 0


@pytest.mark.processes
async def test_a_fleet_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "covey.agent.cli",
        "lab",
        "fleet",
        str(SCENES.written(tmp_path)),
        "--run-dir",
        str(tmp_path),
    ]
    shell = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\ntime.sleep(600)",
        *[*command, "--broker", "mqtt://127.0.0.1:1"],
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert shell.stdout is not None
        pid = int(await shell.stdout.readline())
        await until((tmp_path / "partition.npz").exists)
    finally:
        shell.kill()
        await shell.wait()
    await until(
        lambda: (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/status").read_text()[:200]
        )
    )


def test_an_idle_agent_imports_no_heavy_module() -> None:
    import subprocess

    code = (
        "import sys, covey.agent.cli.program, covey.agent.device.service, covey.agent.worker.pool, covey.shared.mqtt.mqtt_link; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "rich", "yaml", "sklearn", "scipy"} & set(done.stdout.split())


@pytest.mark.whole
def test_check_shows_which_part_of_the_model_travels(tmp_path: Path) -> None:
    def found(**task: Any) -> list[dict[str, Any]]:
        path = SCENES.written(tmp_path, task={"features": [4], "classes": 2, **task})
        line = run("check", "--data", data(tmp_path), "--scenario", path, "--json")
        parts: list[dict[str, Any]] = json.loads(line).get("parts", [])
        return parts

    assert found() == []
    [shared, kept] = found(keep=["fc.bias"])
    assert (shared["role"], shared["tensors"]) == ("share", ["fc.weight"])
    assert (kept["role"], kept["tensors"], kept["bytes"]) == (
        "keep",
        ["fc.bias"],
        4 * kept["parameters"],
    )
    path = SCENES.written(tmp_path, task={"keep": ["fc9"]})
    assert "'fc9' matches no tensor" in refusal(
        "check", "--data", data(tmp_path), "--scenario", path
    )
