"""Benchmarks of devices in files: what `agent bench --json` printed, or the roster of a run, whose statuses carry them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from covey.coordinator.plan.seconds import Network
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.wire.documents import Benchmark

EXPECTED = "expected the output of `agent bench --json` or `coordinator status --json`"


def read_benchmarks(paths: Sequence[Path]) -> list[Benchmark]:
    """The benchmarks in all files, in their order.

    Args:
        paths: each the output of `agent bench --json`, or several of them line by line, or the output of `coordinator
            status --json`, or the roster.json of a run.

    Raises:
        UserError: a file cannot be read, or has something else.
    """
    found: list[Benchmark] = []
    for path in paths:
        for document in _documents(path):
            found += _benchmarks(path, document)
    return found


def _documents(path: Path) -> Iterator[Any]:
    """The JSON texts of a file: the whole of it, or one per line."""
    try:
        content = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the file cannot be read ({error}); {EXPECTED}") from None
    try:
        yield json_text.loads(content)
    except json_text.JsonError:
        for line in content.splitlines():
            if line.strip():
                yield _line(path, line)


def _line(path: Path, line: str) -> Any:
    try:
        return json_text.loads(line)
    except json_text.JsonError as error:
        raise UserError(f"{path}: {error}; {EXPECTED}") from None


def _benchmarks(path: Path, document: Any) -> list[Benchmark]:
    """Those of the agents of a roster, or the one that the document is."""
    roster = document
    if isinstance(document, dict) and isinstance(document.get("roster"), dict):
        roster = document["roster"]
    agents = roster.get("agents") if isinstance(roster, dict) else None
    rows = [document]
    if isinstance(agents, dict):
        of_agents = [row for row in agents.values() if isinstance(row, dict)]
        rows = [row["bench"] for row in of_agents if "bench" in row]
    found: list[Benchmark] = []
    for row in rows:
        try:
            found.append(Benchmark.model_validate(row))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            raise UserError(
                f"{path}: no benchmark of a device ({key}: {first['msg']}); expected the output of `agent bench --json`"
            ) from None
    return found


def parse_network(text: str) -> Network:
    """`DOWN/UP` or one number for both, in Mbit/s. Raises UserError for anything else."""
    down, slash, up = text.partition("/")
    try:
        network = Network(float(down), float(up if slash else down))
    except ValueError:
        network = Network(0.0, 0.0)
    is_sound = 0 < network.down_mbit < float("inf") and 0 < network.up_mbit < float("inf")
    if not is_sound:
        raise UserError(f"--mbit {text}: expected Mbit/s of a device, such as 20 or 20/5 (down/up)")
    return network
