"""The result of `agent lab bench`, printed, and kept with the agent's state so that its status can carry it."""

from __future__ import annotations

import math
from pathlib import Path

from covey.shared.errors import DecodeError
from covey.shared.storage import json_text
from covey.shared.storage.files import private_folder, write_atomically
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


# -- what `agent lab bench` prints -------------------------------------------------------------------------------------


WIDTH = 36  # of the names of figures, in characters


def round_s(result: Benchmark, epochs: int) -> float:
    """Seconds of local training in a round: every step of all epochs, without transfers."""
    return (epochs * math.ceil(result.samples / result.batch)) * result.step_s


def as_json(result: Benchmark, epochs: int) -> str:
    """One object: the result, and what follows from it for a round."""
    content = result.model_dump(mode="json")
    expected_s = round_s(result, epochs)
    content["epochs"] = epochs
    content["round_s"] = round(expected_s, 4)
    return json_text.dumps(content)


def as_text(result: Benchmark, epochs: int) -> str:
    """A line per figure."""
    step_ms = 1000 * result.step_s
    per_1000_s = 1000 * result.step_s / result.batch
    expected_s = round_s(result, epochs)
    lines = [
        _line("model", f"{result.model}, {result.values} values"),
        _line("threads", str(result.threads)),
        _line("import of the learner", f"{result.import_s:.2f} s"),
        _line(f"one step, batch of {result.batch}", f"{step_ms:.2f} ms"),
        _line("training, 1000 samples", f"{per_1000_s:.3f} s"),
        _line(f"evaluation, {result.test_samples} test samples", f"{result.evaluation_s:.3f} s"),
        _line("memory of the training process", f"{result.memory_mb} MB"),
        _line(f"a round: {epochs} epochs, {result.samples} samples", f"{expected_s:.1f} s"),
    ]
    return "\n".join(lines)


def _line(name: str, value: str) -> str:
    padded = name.ljust(WIDTH)
    return padded + value
