"""Commands about finished models: predict with them, and export them as programs."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.agent.cli.options import AgentId, Device, LearnerOption, default_name
from covey.shared.cli import Allow, BrokerAddresses, Json, with_connection
from covey.shared.errors import UserError

if TYPE_CHECKING:
    from covey.agent.policy import OwnersRules
    from covey.extras.in_use.predict import Predictor
    from covey.extras.in_use.serve import Models

NO_MODEL = (
    "no model is better than the constant for the samples of this device: the answers are its most frequent class, or the mean "
    "of its values"
)
WATCH_S = 1.0  # between two looks at a folder


ModelFile = Annotated[
    Path | None, typer.Option(help="one model file, such as models/cluster-0.safetensors of a run")
]


def predict(
    data: Annotated[
        Path | None,
        typer.Option(
            help="new samples: a table, an .npz file, an image or a folder of images, with or without targets; - reads CSV "
            "from standard input"
        ),
    ] = None,
    *,
    watch: Annotated[
        Path | None,
        typer.Option(
            help="predict each table, .npz file, image or sound that comes into this folder, until Ctrl-C; --out is a folder then"
        ),
    ] = None,
    model_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder of `agent start --model-dir`, for the model in use",
            envvar="COVEY_MODEL_DIR",
        ),
    ] = None,
    model: ModelFile = None,
    label: Annotated[
        str | None, typer.Option(help="the column of a table that holds targets; it is left out")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<column>",
            help="a column of the table that the predictions should have, such as an id or a time; repeatable",
        ),
    ] = None,
    score: Annotated[
        bool,
        typer.Option(
            "--score",
            help="print how good the predictions are, compared with the targets of the file, in place of the predictions",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="the file to write  [default: print]; with --watch, a folder"),
    ] = None,
    device: Device = None,
    learner: LearnerOption = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new samples with the model in use. Needs no broker and no network.

    Prints a table with the columns row, prediction and, for classes, probability. Images have the column file too.
    """
    from covey.extras.in_use.predict import SEEN, as_csv, as_json_lines, trains_on
    from covey.extras.in_use.serve import Models
    from covey.shared.sentences import printable_lines
    from covey.shared.storage import json_text
    from covey.shared.storage.files import write_atomically

    models = Models(*_model(model, model_dir), _rules(device, learner, allow))
    if (data is None) == (watch is None):
        raise UserError("name the new samples with --data, or their folder with --watch")
    if watch is not None and (out is None or score):
        raise UserError(
            "--watch writes a file for each new one: name a folder with --out, without --score"
        )
    if score and (out is not None or keep):
        raise UserError("--score prints figures and no predictions: omit --out and --keep")

    def text_for(path: Path, predictor: Predictor) -> str:
        predictions = predictor.predict(path, label, keep or ())
        return as_json_lines(predictions) if as_json else as_csv(predictions)

    if watch is not None and out is not None:
        with suppress(KeyboardInterrupt):
            _watch(watch, out, models, text_for, ".jsonl" if as_json else ".csv")
        return
    assert data is not None  # noqa: S101 - one of the two was given
    with _whole_file(data) as path, models.ready() as predictor:
        if predictor.uses_none:
            print(NO_MODEL, file=sys.stderr)
        if score:
            found = predictor.score(path, label)
            if trains_on(path, model.parent if model is not None else model_dir or Path()):
                print(SEEN, file=sys.stderr)
            print(json_text.dumps(found.to_json()) if as_json else found.sentence)
            return
        text = text_for(path, predictor)
    if out is None:
        # names of classes come with the model, which others made
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        return
    write_atomically(out, text.encode())


def _model(model: Path | None, folder: Path | None) -> tuple[Path | None, Path]:
    """A model's file and a folder of models, of which one is given. UserError without both."""
    if model is None and folder is None:
        raise UserError(
            "no model: name the agent's folder with --model-dir, or a file with --model"
        )
    return model, folder or Path()


def _rules(device: str | None, learner: str | None, allow: list[str] | None) -> OwnersRules:
    from covey.agent.learner_choice import learner_name
    from covey.agent.policy import DEFAULT, OwnersRules
    from covey.shared.own_code.consent import AllowedCode

    policy = DEFAULT if device is None else DEFAULT.with_limits([f"device={device}"])
    return OwnersRules(policy, AllowedCode.parse(allow), learner_name(learner))


@contextmanager
def _whole_file(data: Path) -> Iterator[Path]:
    """The file with the samples: a temporary one for what comes by standard input."""
    if str(data) != "-":
        yield data
        return
    from covey.shared.storage.files import naming

    with tempfile.TemporaryDirectory(prefix="covey-") as folder:
        path = Path(folder) / "standard-input.csv"
        with naming(path):
            path.write_bytes(sys.stdin.buffer.read())
        yield path


def _watch(
    folder: Path, out: Path, models: Models, text_for: Callable[[Path, Predictor], str], suffix: str
) -> None:
    """Predict each new file of a folder. One that does not fit is named, and the others follow."""
    from covey.extras.in_use.predict import seen, whole
    from covey.shared.errors import CoveyError
    from covey.shared.storage.files import write_atomically

    if not folder.is_dir() or folder.resolve() == out.resolve():
        raise UserError(f"--watch {folder}: expected a folder, and another one than --out")
    out.mkdir(parents=True, exist_ok=True)
    done = {
        path: stamp for path, stamp in seen(folder).items() if (out / (path.name + suffix)).exists()
    }
    before = dict(done)
    while True:
        now = seen(folder)
        for path in whole(now, before, done):
            done[path] = now[path]
            try:
                with models.ready() as predictor:
                    text = text_for(path, predictor)
                write_atomically(out / (path.name + suffix), text.encode())
                count = len(text.splitlines()) - (suffix == ".csv")
                print(f"{path.name}: {count} predictions", flush=True)
            except CoveyError as error:
                print(f"{path.name}: {error}", file=sys.stderr, flush=True)
        before = now
        time.sleep(WATCH_S)


@with_connection()
def serve(
    *,
    model_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder of `agent start --model-dir`: serve the model in use, also after it changes",
            envvar="COVEY_MODEL_DIR",
        ),
    ] = None,
    model: ModelFile = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port on 127.0.0.1; 0 takes any free one")
    ] = 8471,
    topic: Annotated[
        str | None,
        typer.Option(
            help="also answer at --broker: with home/pi-7, tables that are published to home/pi-7/rows are answered at home/pi-7/predictions"
        ),
    ] = None,
    discovery: Annotated[
        str | None,
        typer.Option(
            help="with --topic: show Home Assistant a sensor; the prefix of its discovery, usually homeassistant"
        ),
    ] = None,
    name: AgentId = None,
    connection: BrokerAddresses,
    device: Device = None,
    learner: LearnerOption = None,
    allow: Allow = None,
) -> None:
    """Answer other programs that ask for predictions, until Ctrl-C: over HTTP on this machine, over MQTT elsewhere.

    POST /predict takes a table as CSV, or {"rows": [{column: value}]} as JSON; ?keep=COLUMN copies a column. Each answer
    has the run, round and group of the model. GET /model describes the model alone.
    """
    import threading

    if discovery and not topic:
        raise UserError("--discovery announces the sensor of a topic; name it with --topic")
    place = _model(model, model_dir)
    print(f"{model or model_dir}: loads the model", file=sys.stderr, flush=True)
    from covey.extras.in_use.serve import Models, PredictionServer

    models = Models(*place, _rules(device, learner, allow))
    with models.ready():
        pass  # a model that cannot be used is named now
    with PredictionServer(models, port) as server, suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{server.port}/predict", flush=True)
        if topic is None:
            server.serve_forever()
            return
        threading.Thread(target=server.serve_forever, daemon=True).start()
        _serve_mqtt(models, connection, topic, name or default_name(), discovery or "")


def _serve_mqtt(
    models: Models, connection: BrokerAddresses, topic: str, agent: str, discovery: str
) -> None:
    import asyncio
    import secrets

    from covey.extras.in_use.serve_mqtt import ServeTopics, serve
    from covey.shared.mqtt.mqtt_link import MqttLink

    place = ServeTopics(topic, agent, discovery)
    url = connection.url()

    async def until_the_end() -> None:
        client = f"covey-serve-{secrets.token_hex(4)}"
        async with MqttLink(url, client_id=client, will=place.will) as link:
            print(f"{url}: {place.rows}", flush=True)
            await serve(link, place, models, partial(print, file=sys.stderr, flush=True))

    asyncio.run(until_the_end())


def reset(
    model_dir: Annotated[
        Path,
        typer.Option(
            help="folder of `agent start --model-dir`; stop the agent first",
            envvar="COVEY_MODEL_DIR",
        ),
    ],
) -> None:
    """Forget which publication this device dealt with last, so that it considers the next one in any case.

    The model in use and the earlier ones stay. Needed after a publication from a machine whose clock was ahead.
    """
    from covey.extras.in_use.model_dir import INDEX, ModelDir
    from covey.shared.storage.files import folder_lock

    if not (model_dir / INDEX).is_file():
        raise UserError(
            f"{model_dir / INDEX}: no such file; expected a folder of agent start --model-dir"
        )
    with folder_lock(model_dir, f"{model_dir}: an agent keeps its models here; stop it first"):
        models = ModelDir(model_dir)
        if models.damage:
            raise UserError(models.damage)
        models.settle(0, pinned=False)
    print(f"{model_dir}: the next publication counts, whatever its serial number")


def export(
    model: Annotated[
        Path,
        typer.Argument(
            help="models/cluster-0.safetensors of a finished run, or a kept model of a device",
            exists=True,
        ),
    ],
    out: Annotated[Path, typer.Option(help="the .pt2 or .onnx file to write")],
    allow: Allow = None,
) -> None:
    """Write a group's model, or the mixture that a device uses, as a program that runs without Covey.

    Its input is a batch of features as they are in the data, its output a score for each class, or the predicted numbers. Neighbours, trees and a companion of the fleet are left out, and named.
    """
    from covey.extras.in_use.program import export as written
    from covey.shared.own_code.consent import AllowedCode

    if left_out := written(model, out, AllowedCode.parse(allow)):
        print(
            f"left out, because a program has networks alone: {left_out}; the rest counts in proportion"
        )
