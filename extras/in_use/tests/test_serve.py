"""`agent serve` over HTTP, and `agent predict` for standard input and for a folder."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.policy import NO_CODE_RULES
from covey.extras.in_use import serve
from covey.extras.in_use import serve_mqtt as serve_mqtt_module
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_dir import ModelDir
from covey.extras.in_use.model_file import save_model
from covey.extras.in_use.predict import Predictor, seen, whole
from covey.extras.in_use.serve import Models, PredictionServer
from covey.extras.in_use.serve_mqtt import ServeTopics
from covey.extras.in_use.serve_mqtt import serve as serve_mqtt
from covey.extras.in_use.tests.test_kept import BAD, GOOD, LAYOUT, TASK
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.retained import until_quiet
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.storage import json_text
from tests import clock
from tests.kit.memory_broker import MemoryBroker
from tests.night import examples

NAMED = TASK.model_copy(update={"columns": ("a", "b"), "ignore": ("id",)})


def use(folder: Path, version: Version, *, good: bool = True) -> None:
    """Make a model the one in use."""
    models = ModelDir(folder)
    vector = GOOD if good else BAD
    save_model(
        models.path(version), version, NAMED.for_agents(), mixture=((1.0, vector),), layout=LAYOUT
    )
    models.take(version, "first")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PredictionServer]:
    use(tmp_path / "models", Version("r1", 3, 0))
    with PredictionServer(Models(None, tmp_path / "models", NO_CODE_RULES), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def values(tmp_path: Path) -> Models:
    """A model of a value, twice `a` plus `b`: large rows overflow."""
    folder, version = tmp_path / "value", Version("r1", 3, 0)
    models = ModelDir(folder)
    task = NAMED.model_copy(update={"classes": None}).for_agents()
    layout = Layout((Tensor("fc.weight", (1, 2)), Tensor("fc.bias", (1,))), 2)
    vector = np.array([2, 1, 0.5], np.float32)
    save_model(models.path(version), version, task, mixture=((1.0, vector),), layout=layout)
    models.take(version, "first")
    return Models(None, folder, NO_CODE_RULES)


def ask(
    server: PredictionServer, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, Any]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    link.request(
        method,
        path,
        body,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )
    answer = link.getresponse()
    found = json.loads(answer.read())
    link.close()
    return answer.status, found


def test_tables_and_rows_are_answered_with_the_model_that_predicts(
    server: PredictionServer,
) -> None:
    table = "id,a,b\n0042,1.5,0\n7,-2,1\n"
    status, found = ask(server, "POST", "/predict?keep=id", table, Content_Type="text/csv")
    assert status == 200
    assert [(one["id"], one["prediction"]) for one in found["predictions"]] == [
        ("0042", "yes"),
        ("7", "no"),
    ]
    assert (found["model"]["run"], found["model"]["round"], found["model"]["cluster"]) == (
        "r1",
        3,
        0,
    )
    rows = json.dumps({"rows": [{"a": 1.5, "b": 0}, {"a": -2, "b": 1}]})
    status, again = ask(server, "POST", "/predict", rows, Content_Type="application/json")
    assert [one["prediction"] for one in again["predictions"]] == ["yes", "no"]
    status, model = ask(server, "GET", "/model")
    assert (model["columns"], model["classes"]) == (["a", "b"], ["no", "yes"])


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_a_row_with_an_end_of_a_line_within_a_word_is_one_row(
    server: PredictionServer, end: str
) -> None:
    rows = json.dumps({"rows": [{"id": f"one{end}two", "a": 1.5, "b": 0}]})
    _status, found = ask(server, "POST", "/predict?keep=id", rows, Content_Type="application/json")
    assert [(one["id"], one["prediction"]) for one in found["predictions"]] == [
        (f"one{end}two", "yes")
    ]


def test_a_new_model_in_use_answers_from_the_next_request_on(
    server: PredictionServer, tmp_path: Path
) -> None:
    use(tmp_path / "models", Version("r2", 1, 0), good=False)
    _status, found = ask(server, "POST", "/predict", "a,b\n1.5,0\n", Content_Type="text/csv")
    assert (found["predictions"][0]["prediction"], found["model"]["run"]) == ("no", "r2")


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "why"),
    [
        ("/predict", "a,b\n1,x\n", "text/csv", 400, "the request: row 1 (line 2), column 'b': 'x'"),
        ("/predict", "a\n1\n", "text/csv", 400, "the request"),
        ("/predict", "[1]", "application/json", 400, 'expected {"rows"'),
        ("/predict", "{", "application/json", 400, "not JSON"),
        ("/predict", '{"rows": [{"a": 1}, {"z": 1}]}', "application/json", 400, "columns of the first"),
        ("/predict", "", "text/csv", 400, "0 bytes"),
        ("/predict?keep=row", "a,b\n1,2\n", "text/csv", 400, "predictions have a column"),
        ("/elsewhere", "a,b\n1,2\n", "text/csv", 404, "POST /predict"),
    ],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused_with_its_reason(
    server: PredictionServer, path: str, body: str, kind: str, status: int, why: str
) -> None:
    seen, found = ask(server, "POST", path, body, Content_Type=kind)
    assert seen == status
    assert why in found["error"]


def test_a_web_page_of_another_name_and_a_body_without_end_are_refused(
    server: PredictionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(server, "GET", "/model", Host="evil.example")[0] == 403
    monkeypatch.setattr(serve, "MOST_BYTES", 10)
    status, found = ask(server, "POST", "/predict", "a,b\n" + "1,2\n" * 9, Content_Type="text/csv")
    assert (status, "40 bytes" in found["error"]) == (400, True)


def test_pages_of_other_origins_and_forms_are_refused(server: PredictionServer) -> None:
    for origin in ("http://evil.example", "null", "", f"https://localhost:{server.port}"):
        assert ask(server, "GET", "/model", Origin=origin)[0] == 403
        table = ask(
            server, "POST", "/predict", "a,b\n1,2\n", Origin=origin, Content_Type="text/csv"
        )
        assert table[0] == 403
    own = f"http://localhost:{server.port}"
    assert ask(server, "GET", "/model", Origin=own)[0] == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, found = ask(server, "POST", "/predict", "a,b\n1,2\n", Content_Type=kind)
        assert (status, "expected text/csv or application/json" in found["error"]) == (400, True)


def test_a_length_that_is_none_is_named_and_no_other_error_is_called_one(
    server: PredictionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in ("x", "-1", "\u00b2", "9" * 5000):
        wrong = ask(server, "POST", "/predict", Content_Length=length, Content_Type="text/csv")
        assert (wrong[0], "Content-Length is not" in wrong[1]["error"]) == (400, True)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("of nobody's making")

    monkeypatch.setattr(Predictor, "predict", broken)
    status, found = ask(server, "POST", "/predict", "a,b\n1,2\n", Content_Type="text/csv")
    assert (status, "failed with ValueError" in found["error"]) == (500, True)
    assert ask(server, "GET", "/model")[0] == 200


def test_a_row_without_a_finite_answer_is_named_over_http(values: Models) -> None:
    with PredictionServer(values, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        table = "a,b\n1,2\n3e38,3e38\n"
        status, found = ask(server, "POST", "/predict", table, Content_Type="text/csv")
        server.shutdown()
    assert (status, "the request: row 2" in found["error"]) == (400, True)


CELLS = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.text(max_size=4),
    st.sampled_from(["3e38", "1e999"]),
)


@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=3), junk=st.binary(max_size=8)
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(20),
)
def test_any_message_is_answered_in_json_and_ends_nothing(
    values: Models, rows: list[list[str]], junk: bytes
) -> None:
    table = "\n".join(["a,b", *(",".join(cells) for cells in rows)]).encode()
    for message in (table, table + junk, junk, json.dumps({"rows": rows}).encode()):
        for _topic, payload, _retain in serve_mqtt_module.answers(PLACE, values, message):
            json_text.loads(payload)


def test_a_table_may_come_by_standard_input(tmp_path: Path) -> None:
    use(tmp_path / "models", Version("r1", 3, 0))
    words = [
        "predict",
        "--data",
        "-",
        "--model-dir",
        str(tmp_path / "models"),
        "--learner",
        "numpy",
    ]
    shown = CliRunner().invoke(app, words, input="a,b\n1.5,0\n")
    assert shown.stdout.splitlines()[1].startswith("1,yes,")


def test_each_new_file_of_a_folder_is_predicted_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path / "models", Version("r1", 3, 0))
    inbox, out = tmp_path / "in", tmp_path / "out"
    inbox.mkdir()
    looks: Iterator[Callable[[], object]] = iter(
        [
            lambda: (inbox / "one.csv").write_text("a,b\n"),
            lambda: (inbox / "one.csv").write_text("a,b\n1.5,0\n"),
            lambda: (inbox / "bad.csv").write_text("a,b\n1,x\n"),
            lambda: (inbox / "notes.txt").write_text("a,b\n1,2\n"),
            lambda: (inbox / "two.csv").write_text("a,b\n-1,0\n-1,0\n"),
            lambda: None,
        ]
    )

    def sleep(_: float) -> None:
        look = next(looks, None)
        if look is None:
            raise KeyboardInterrupt
        look()

    monkeypatch.setattr("covey.extras.in_use.models.time.sleep", sleep)
    words = [
        "predict",
        "--watch",
        str(inbox),
        "--out",
        str(out),
        "--model-dir",
        str(tmp_path / "models"),
    ]
    shown = CliRunner().invoke(app, [*words, "--learner", "numpy"])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines() == ["one.csv: 1 predictions", "two.csv: 2 predictions"]
    assert "bad.csv: " in shown.stderr
    assert sorted(path.name for path in out.iterdir()) == ["one.csv.csv", "two.csv.csv"]


def test_a_file_counts_when_two_looks_see_the_same_and_again_when_it_changes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.csv"
    first, second = {file: (1, 1)}, {file: (2, 2)}
    assert whole(first, {}, {}) == []
    assert whole(second, first, {}) == []
    assert whole(second, second, {}) == [file]
    assert whole(second, second, second) == []
    assert whole(first, first, second) == [file]
    file.write_text("a")
    assert list(seen(tmp_path)) == [file]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--data, or their folder with --watch"),
        (["--data", "x.csv", "--watch", "."], "--data, or their folder with --watch"),
        (["--watch", "."], "name a folder with --out"),
        (["--watch", "nowhere", "--out", "out"], "expected a folder"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(tmp_path: Path, words: list[str], why: str) -> None:
    use(tmp_path / "models", Version("r1", 3, 0))
    refused = CliRunner().invoke(
        app, ["predict", *words, "--model-dir", str(tmp_path / "models"), "--learner", "numpy"]
    )
    assert refused.exit_code == 2
    assert why in refused.stderr


# -- over MQTT -------------------------------------------------------------------------------------

PLACE = ServeTopics("home/pi-7", "pi.7", "homeassistant")


@clock.virtual(within_s=3600)
async def test_a_retained_row_without_a_finite_answer_does_not_end_the_program(
    values: Models,
) -> None:
    broker = MemoryBroker()
    async with broker.link("reader") as reader, broker.link("pi-7", PLACE.will) as link:
        await reader.publish(PLACE.rows, b"a,b\n3e38,3e38\n", retain=True)
        serving = asyncio.create_task(serve_mqtt(link, PLACE, values))
        await reader.subscribe(["home/pi-7/predictions"])
        answers: list[Any] = []
        async for item in reader.incoming():
            if isinstance(item, Received):
                answers.append(json.loads(item.payload))
                if len(answers) == 2:
                    break
                await reader.publish(PLACE.rows, b"a,b\n1,2\n")
        serving.cancel()
        await asyncio.wait({serving})
    assert "row 1" in answers[0]["error"]
    assert answers[1]["predictions"][0]["prediction"] == 4.5


@clock.virtual(within_s=3600)
async def test_a_device_answers_at_a_topic_of_its_own_and_retains_its_newest_prediction(
    tmp_path: Path,
) -> None:
    use(tmp_path / "models", Version("r1", 3, 0))
    models = Models(None, tmp_path / "models", NO_CODE_RULES)
    broker = MemoryBroker()
    rows = json.dumps({"rows": [{"a": -2, "b": 1}, {"a": 1.5, "b": 0}]}).encode()
    async with broker.link("reader") as reader, broker.link("pi-7", PLACE.will) as link:
        serving = asyncio.create_task(serve_mqtt(link, PLACE, models))
        seen: dict[str, bytes] = {}

        async def until(topic: str) -> Any:
            async for item in reader.incoming():
                if isinstance(item, Received):
                    seen[item.topic] = item.payload
                    if item.topic == topic:
                        break
            return json.loads(seen[topic])

        await reader.subscribe(["home/#", "homeassistant/#"])
        sensor = await until("homeassistant/sensor/covey_pi_7/config")
        assert seen["home/pi-7/status"] == b"online"
        assert sensor["availability_topic"] == "home/pi-7/status"
        await reader.publish("home/pi-7/rows", rows)
        newest = await until(sensor["state_topic"])
        whole = json.loads(seen["home/pi-7/predictions"])
        assert [one["prediction"] for one in whole["predictions"]] == ["no", "yes"]
        assert (newest["row"], newest["prediction"], newest["model"]["run"]) == (2, "yes", "r1")
        for wrong in (b"", b"a\n1\n", b"{", b"[1]", b"\xff"):
            await reader.publish("home/pi-7/rows", wrong)
            assert "error" in await until("home/pi-7/predictions")
        serving.cancel()
        await asyncio.wait({serving})
    async with broker.link("later") as later:
        await later.subscribe(["home/#"])
        kept = {one.topic: one.payload async for one in until_quiet(later, 10.0)}
    assert kept["home/pi-7/status"] == b"offline"
    assert set(kept) == {"home/pi-7/status", "home/pi-7/prediction"}


@clock.virtual(within_s=3600)
async def test_a_device_that_answers_over_mqtt_reports_why_its_broker_is_lost(
    tmp_path: Path,
) -> None:
    models = Models(None, tmp_path / "models", NO_CODE_RULES)
    broker, shown = MemoryBroker(), asyncio.Queue[str]()
    async with broker.link("pi-7", PLACE.will) as link:
        serving = asyncio.create_task(serve_mqtt(link, PLACE, models, shown.put_nowait))
        await asyncio.sleep(0.1)
        broker.disconnect("pi-7")
        assert await shown.get()
        serving.cancel()
        await asyncio.wait({serving})


def test_who_serves_reports_what_it_does_before_anything_that_takes_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "covey.extras.in_use.serve", None)
    done = CliRunner().invoke(app, ["serve", "--model-dir", str(tmp_path), "--port", "0"])
    assert done.output.startswith(f"{tmp_path}: loads the model\n")


def test_a_topic_that_no_message_can_have_is_refused(tmp_path: Path) -> None:
    for wrong in ("", "#", "home/+", "/home", "home/", "a//b", "a\x00"):
        with pytest.raises(UserError, match="without # and"):
            ServeTopics(wrong, "pi-7")
    use(tmp_path / "models", Version("r1", 3, 0))
    words = ["serve", "--model-dir", str(tmp_path / "models"), "--port", "0"]
    done = CliRunner().invoke(app, [*words, "--discovery", "homeassistant"])
    assert "name it with --topic" in done.output
    assert "without # and" in CliRunner().invoke(app, [*words, "--topic", "#"]).output
