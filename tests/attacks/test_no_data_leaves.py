"""No cell of data, no path and no class of its own leaves a device in a message: they are for its own terminal."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.agent.data import fit, load
from covey.agent.data.check import disclosed
from covey.agent.worker.worker import answer
from covey.shared.errors import (
    SEE_THE_LOG,
    DataError,
    DecodeError,
    PublicError,
    UserError,
    public_text,
)
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.scenario.task import Task
from covey.shared.wire.documents import CoordinatorStatus
from covey.shared.wire.jobs import DeviceData, Failure, InspectData
from covey.shared.wire.topics import Topics
from scripts.size import parts_of
from tests.agent.orders import order
from tests.attacks.bad_data import CASES, OWN_TASKS, SECRET
from tests.processes import ROOT, free_port, mosquitto, needs_mosquitto, program, until, words

TASK = Task(features=(2,), classes=("healthy", "ill"))
COUNTED = TASK.model_copy(update={"classes": 2})
VALUES = TASK.model_copy(update={"classes": None})
# files whose errors stay on the machine: data of simulated fleets, of `agent predict` and of `agent check --propose`
NOT_SENT = (
    "named.py",
    "device_folders.py",
    "unlabelled.py",
    "predict.py",
    "proposal_data.py",
    "describe.py",
)
# reached without a package, on files as large as the limit, or on files that no program writes
OUT_OF_REACH = {
    "needs pyarrow",
    "needs scipy",
    "needs Pillow",
    "unpacks to more",
    "its columns differ in length",
    "no training samples",  # data that was inspected has some
    "its columns are not those of",  # a proposal reads a growing folder so; work joins whole files
}


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


def refusals(name: str, folder: Path) -> list[DataError]:
    """The faults that each of three tasks finds in the data of a case: named classes, counted classes, and values.

    A case with a task of its own is tried with that one.
    """
    source = CASES[name](folder)
    found = []
    tasks = [TASK, COUNTED, VALUES]
    if name in OWN_TASKS:
        tasks = [Task.model_validate({**TASK.model_dump(), **OWN_TASKS[name]})]
    for task in tasks:
        job = InspectData(
            source=DeviceData(data=source[0], label=source[1]), task=task.model_dump(mode="json")
        )
        told = answer(job)
        if problem := told.why if isinstance(told, Failure) else told.problem:
            found.append(DataError(told.detail, public=problem))
    return found


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_public_error_about_bad_data_quotes_neither_a_value_nor_a_path(
    name: str, tmp_path: Path
) -> None:
    found = refusals(name, tmp_path)
    assert found, "this data is not bad"
    for error in found:
        assert SECRET not in error.public
        assert str(tmp_path) not in error.public
        assert not re.search(r"\b(0\.5|1\.75|77431|99)\b", error.public), "a value of the data"
        assert SEE_THE_LOG not in error.public, "a DataError names the kind of fault"
        assert str(tmp_path) in str(error) or SECRET in str(error), (
            "the terminal shows where the fault is"
        )


@pytest.mark.whole
def test_every_refusal_of_data_has_a_public_text_and_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of DataError in agent/ is reached by one of the cases, so none is left out of the test above."""
    reached: set[tuple[str, int]] = set()
    as_it_was = DataError.__init__

    def remembered(self: DataError, text: str, public: str = "") -> None:
        caller = sys._getframe(1)
        # the package is a link to the sources: compare the files that it leads to
        file = Path(caller.f_code.co_filename).resolve()
        reached.add((str(file), caller.f_lineno))
        as_it_was(self, text, public)

    monkeypatch.setattr(DataError, "__init__", remembered)
    for name in CASES:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
        refusals(name, folder)
    missed = [
        f"{path.name}:{call.lineno}"
        for path, call, text in data_errors()
        if not any(
            file == str(path) and call.lineno <= line <= (call.end_lineno or 0)
            for file, line in reached
        )
        and not any(words in text for words in OUT_OF_REACH)
    ]
    assert not missed, f"no case reaches {', '.join(missed)}"


def data_errors() -> Iterator[tuple[Path, ast.Call, str]]:
    """Every call of DataError in the readers of data files, with the text of the function around it."""
    for path in (ROOT / file for file in parts_of(ROOT)):
        text = path.read_text()
        is_reader = path.parent == ROOT / "agent/data" or "covey.agent.data" in text
        if path.name in NOT_SENT or not is_reader:
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == "DataError"
                ):
                    around = text.splitlines()[call.lineno - 6 : call.end_lineno]
                    yield path, call, "\n".join(around)


def test_every_data_error_is_given_a_public_text() -> None:
    for path, call, _ in data_errors():
        assert "public" in {keyword.arg for keyword in call.keywords}, f"{path}:{call.lineno}"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"could not convert string to float: '{SECRET}'"),
        FileNotFoundError(2, "No such file", f"/home/{SECRET}"),
        UserError(f"/home/{SECRET}/model.npz: is damaged"),
        DataError(f"/home/{SECRET}"),
        DecodeError("checksum", f"/home/{SECRET}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_only_the_kind_of_any_other_error_is_public(error: Exception) -> None:
    assert SECRET not in public_text(error)
    assert len(public_text(error)) < 120


def test_an_error_about_the_order_alone_is_public_in_full() -> None:
    assert public_text(PublicError("lower training.lr")) == "lower training.lr"


def test_the_problem_that_leaves_is_the_public_text_and_quotes_nothing(tmp_path: Path) -> None:
    own = load(*CASES["csv_classes_that_nobody_named"](tmp_path))
    with pytest.raises(DataError, match=SECRET):
        fit(own, TASK)
    assert (
        disclosed(own, TASK).problem
        == "row 1: its class is unknown to the task; its classes are healthy, ill"
    )


# -- real processes ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(port: int) -> Iterator[list[tuple[str, bytes]]]:
    """Every message that goes over the broker, retained or not, until the block ends."""
    import threading

    heard: list[tuple[str, bytes]] = []
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    async def listen() -> None:
        async with MqttLink(f"mqtt://127.0.0.1:{port}", client_id="listener") as link:
            incoming = link.incoming()
            await anext(incoming)
            await link.subscribe(["covey/#"])
            ready.set()
            ending = asyncio.create_task(over.wait())
            while not over.is_set():
                one = asyncio.ensure_future(anext(incoming))
                await asyncio.wait({one, ending}, return_when=asyncio.FIRST_COMPLETED)
                if one.done() and isinstance(message := one.result(), Received):
                    heard.append((message.topic, message.payload))
                one.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield heard
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)


def publish(port: int, topic: str, payload: bytes) -> None:
    async def once() -> None:
        async with MqttLink(f"mqtt://127.0.0.1:{port}", client_id="coordinator") as link:
            await anext(link.incoming())
            assert await link.publish(topic, payload, retain=True)

    asyncio.run(once())


def calls_the_roll(port: int, task: Task, epoch: str) -> None:
    status: dict[str, Any] = {
        "online": True,
        "epoch": epoch,
        "run": "run-1",
        "task_digest": task.digest,
    }
    publish(
        port,
        Topics("default").coordinator_status,
        CoordinatorStatus(task=task.for_agents(), **status).to_bytes(),
    )


GOOD = f"{SECRET}_age,weight,label\n" + "1,2,healthy\n3,4,ill\n" * 5
BAD = {
    f"{GOOD}5,Erika {SECRET},ill\n": "row 11, column 2 is not a number",
    f"{GOOD}5,6,{SECRET}\n": "its class is unknown to the task",
}


@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
def test_a_name_a_class_and_a_path_stay_on_the_device(tmp_path: Path) -> None:
    """Before: the value, the class and the path were in the agent's retained status, three times over."""
    port = free_port()
    data = tmp_path / f"{SECRET}-files" / "patients.csv"
    data.parent.mkdir()
    start = words(
        "agent start", "--data", data, "--id", "pi", "--broker", f"mqtt://127.0.0.1:{port}"
    )
    with mosquitto(tmp_path, port), listening(port) as heard:
        for number, (text, kind) in enumerate(BAD.items()):
            data.write_text(text)
            log = tmp_path / f"agent-{number}.log"
            calls_the_roll(port, TASK, f"e{number}.1")
            with program(*start, "--state", str(tmp_path / f"state-{number}"), log=log) as agent:
                needle = kind.encode()
                until(lambda: any(needle in payload for _, payload in heard), of=agent)  # noqa: B023
                until(lambda: SECRET in agent.output.partition("staying out")[2], of=agent)
                assert str(data) in agent.output
    told = b"".join(payload for _, payload in heard)
    assert SECRET.encode() not in told
    assert str(tmp_path).encode() not in told


@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
def test_a_failed_work_is_reported_without_the_value_that_it_failed_on(tmp_path: Path) -> None:
    """Before: the report quoted the cell and the path, and lay in the coordinator's spool."""
    port = free_port()
    data = tmp_path / "patients.csv"
    data.write_text(GOOD)
    start = words(
        "agent start", "--data", data, "--id", "pi", "--broker", f"mqtt://127.0.0.1:{port}"
    )
    start += [
        "--state",
        str(tmp_path / "state"),
        "--keep-warm",
        "0",
    ]  # so that the data is read again for the order
    with mosquitto(tmp_path, port), listening(port) as heard:
        calls_the_roll(port, TASK, "e.1")
        with program(*start, log=tmp_path / "agent.log") as agent:
            until(lambda: "data fits the task" in agent.output, of=agent)
            data.write_text(next(iter(BAD)))
            work = order(1, phase="moments", task=TASK.for_agents())
            publish(port, Topics("default").order("pi"), work.to_bytes())
            until(lambda: any("/report/" in topic for topic, _ in heard), of=agent)
            assert f"Erika {SECRET}" in agent.output
    reports = [payload for topic, payload in heard if "/report/" in topic]
    assert any(b"row 11, column 2 is not a number" in payload for payload in reports)
    assert not any(SECRET.encode() in payload for _, payload in heard)
