"""The result of `agent lab bench`, kept with the agent's state so that its status can carry it."""

from __future__ import annotations

from pathlib import Path

from covey.shared.errors import DecodeError
from covey.shared.files import private_folder, write_atomically
from covey.shared.wire.documents import Benchmark

NAME = "bench.json"
MAX_BYTES = 1 << 12


def write(state: Path, result: Benchmark) -> Path:
    """Write the result into the folder of an agent's state. Returns the file."""
    private_folder(state)
    file = state / NAME
    write_atomically(file, result.model_dump_json().encode())
    return file


def read(state: Path) -> Benchmark | None:
    """The newest result; None if there is none, or if its file is damaged: it is only for people."""
    try:
        with (state / NAME).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return None
        return Benchmark.model_validate_json(content)
    except (OSError, DecodeError, ValueError):
        return None
