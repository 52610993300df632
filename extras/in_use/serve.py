"""Predictions of the model in use for other programs of this machine: `agent serve`, over HTTP.

It listens on 127.0.0.1. A request must name that address (or localhost) as its host, so that a web page cannot reach it
under a name of its own, and a page of another origin is refused. No request ends the program. Requests are answered one after another; a new model in use serves from the next request on.

    GET  /model                     what answers: run, round, cluster, inputs, classes
    POST /predict?keep=COLUMN       a table: CSV text, or JSON {"rows": [{column: value, ...}, ...]}
"""

from __future__ import annotations

import csv
import io
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from covey.agent.policy import OwnersRules
from covey.extras.in_use.predict import Predictor, model_in_use
from covey.shared.candidate_names import SERVED, in_words
from covey.shared.errors import CoveyError, UserError
from covey.shared.programs.bounded_http import BoundedOnThisMachine, body_length
from covey.shared.storage import json_text
from covey.shared.storage.files import naming

MOST_BYTES = 16 << 20  # of a request
CSV, JSON = "text/csv", "application/json"

Asked = Callable[[Mapping[str, list[str]]], Mapping[str, Any]]  # from the query of a request

log = logging.getLogger(__name__)


class Models:
    """The model that answers: one file, or the model in use of a folder, which may change.

    Args:
        model: a model's file; None: the model in use.
        folder: of `agent start --model-dir`; used without a file.
        rules: the code that may be imported for the model.
    """

    def __init__(self, model: Path | None, folder: Path, rules: OwnersRules) -> None:
        self._model = model
        self._folder = folder
        self._rules = rules
        self._lock = threading.Lock()
        self._predictor: Predictor | None = None
        self._changed = 0  # when its file was written, ns

    @contextmanager
    def ready(self) -> Iterator[Predictor]:
        """The model, for one request at a time. Raises UserError if there is none."""
        with self._lock:
            path = self._model or model_in_use(self._folder)
            changed = path.stat().st_mtime_ns if path.exists() else 0
            found = self._predictor
            if found is None or found.file.path != path or self._changed != changed:
                found = Predictor(path, self._rules)
                self._predictor, self._changed = found, changed
            yield found


def described(predictor: Predictor) -> dict[str, Any]:
    """The model that answers."""
    file = predictor.file
    version = file.version
    task = file.task
    return {
        "run": None if version is None else version.run,
        "round": None if version is None else version.round,
        "cluster": None if version is None else version.cluster,
        "uses": predictor.uses or in_words({SERVED: 1.0}),
        "columns": list(task.columns),
        "features": list(task.features),
        "classes": list(task.classes) if isinstance(task.classes, tuple) else task.classes,
    }


def answer(models: Models, body: bytes, kind: str, keep: list[str]) -> dict[str, Any]:
    """The predictions for the table in a request, with the model that made them.

    Raises:
        CoveyError: the table cannot be read, or does not fit the model.
    """
    text = _table(body) if kind == JSON else body
    with models.ready() as predictor, tempfile.TemporaryDirectory(prefix="covey-") as folder:
        path = Path(folder) / "request.csv"
        with naming(path):
            path.write_bytes(text)
        try:
            found = predictor.predict(path, keep=keep)
        except CoveyError as error:
            raise UserError(str(error).replace(str(path), "the request")) from None
        return {"model": described(predictor), "predictions": [one.to_json() for one in found]}


def refusal(error: Exception) -> dict[str, str]:
    """The answer to a request that failed. An error that no one expected is shown on the terminal, too."""
    if isinstance(error, CoveyError):
        return {"error": str(error)}
    kind = type(error).__name__
    log.error("a request failed with %s: %s", kind, error)
    return {"error": f"the request failed with {kind}; the terminal of `agent serve` shows more"}


def _table(body: bytes) -> bytes:
    """A table of the rows in a JSON object. Raises UserError if it has none."""
    try:
        found = json_text.loads(body)
    except ValueError as error:
        raise UserError(f"the request: {error}") from None
    rows = found.get("rows") if isinstance(found, Mapping) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError('the request: expected {"rows": [{column: value, ...}, ...]}')
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), restval="")
    writer.writeheader()
    try:
        writer.writerows(rows)
    except ValueError as error:  # a row has a column that the first one lacks
        raise UserError(
            f"the request: all rows need the columns of the first one; {error}"
        ) from None
    return text.getvalue().encode()


class PredictionServer(BoundedOnThisMachine):
    """Answers for one device."""

    max_connections = 32
    request_s = 60.0

    def __init__(self, models: Models, port: int) -> None:
        self.models = models
        super().__init__(port, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: PredictionServer
    server_version = "covey"
    sys_version = ""

    def do_GET(self) -> None:
        """The model that answers."""
        self._reply("/model", lambda query: self._model())

    def do_POST(self) -> None:
        """Predictions."""
        self._reply("/predict", self._predictions)

    def _model(self) -> dict[str, Any]:
        with self.server.models.ready() as predictor:
            return described(predictor)

    def _predictions(self, query: Mapping[str, list[str]]) -> dict[str, Any]:
        size = body_length(self.headers, MOST_BYTES)
        if size == 0:
            raise UserError(f"the request has 0 bytes; expected a table of 1 to {MOST_BYTES} bytes")
        kind = self.headers.get_content_type() if "Content-Type" in self.headers else "missing"
        if kind not in (CSV, JSON):
            raise UserError(f"the request's Content-Type is {kind}; expected {CSV} or {JSON}")
        return answer(self.server.models, self.rfile.read(size), kind, query.get("keep", []))

    def _reply(self, path: str, found: Asked) -> None:
        asked = urlsplit(self.path)
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in self.server.hosts:
            self._send(HTTPStatus.FORBIDDEN, {"error": "this host is not served"})
        elif origin is not None and not self.server.is_own_page(origin):
            self._send(HTTPStatus.FORBIDDEN, {"error": "pages of other origins are not served"})
        elif asked.path != path:
            self._send(HTTPStatus.NOT_FOUND, {"error": "expected GET /model or POST /predict"})
        else:
            self._send(*self._answered(found, asked.query))

    def _answered(self, found: Asked, query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        try:
            return HTTPStatus.OK, found(parse_qs(query))
        except CoveyError as error:
            return HTTPStatus.BAD_REQUEST, refusal(error)
        except Exception as error:  # the next request is answered all the same
            return HTTPStatus.INTERNAL_SERVER_ERROR, refusal(error)

    def _send(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        body = json_text.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a device's log is for its owner's events."""
