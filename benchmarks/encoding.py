"""A vector of 11.2 M values in each codec, next to one copy of it.

    python -m benchmarks.encoding [--times 7] [--values 11191300]

The floor is `np.copy` of the vector. Other rows are parts: numpy's own conversion to float16 works on one value at a time,
and int8 draws one random number for each value. `content` is the whole report as it travels, with its digest; its floor
is the hash in it. All is measured in a process with the settings of a worker.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measuring import OUT, Row, cost_of, foreign_load, in_turns, show
from covey.agent.training.torch_learner import configure_torch
from covey.shared.numerics.vectors import Vector
from covey.shared.programs.child import worker_environment
from covey.shared.wire import number_formats
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import DIGEST_BYTES, ReportContent, digest

BASE_DIGEST = bytes(DIGEST_BYTES)
CODECS = {
    "float32": Codec("float32"),
    "float16": Codec("float16"),
    "bfloat16": Codec("bfloat16"),
    "int8": Codec("int8"),
    "topk": Codec("topk", delta=True),
}

Work = Callable[[], object]


def rows(values: int, times: int) -> list[Row]:
    """Each codec next to a copy, then the parts that no codec can avoid, then a whole content."""
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(values, np.float32) * np.float32(0.05)
    base = vector + rng.standard_normal(values, np.float32) * np.float32(0.001)
    found = []

    def compare(what: str, floor: Work, product: Work) -> None:
        found.append(in_turns(what, lambda: cost_of(floor), lambda: cost_of(product), times))

    for name, codec in CODECS.items():
        compare(name, vector.copy, partial(encoded, vector, codec, base))
    compare("  float16 without torch", vector.copy, partial(encoded_without_torch, vector))
    compare("  numpy's conversion to float16", vector.copy, lambda: vector.astype(np.float16))
    compare(
        "  one random number for each value",
        vector.copy,
        lambda: rng.random(values, dtype=np.float32),
    )
    compare("content", lambda: hashed(vector), lambda: content(vector))
    return found


def encoded(vector: Vector, codec: Codec, base: Vector) -> object:
    return encode(vector, codec, base=base, base_digest=BASE_DIGEST, rng=np.random.default_rng(1))


def encoded_without_torch(vector: Vector) -> object:
    """In float16, as in a process that trains with numpy alone."""
    with_torch = number_formats.CONVERSIONS["float16"]
    number_formats.CONVERSIONS["float16"] = number_formats._float16
    try:
        return encoded(vector, CODECS["float16"], vector)
    finally:
        number_formats.CONVERSIONS["float16"] = with_torch


def content(vector: Vector) -> bytes:
    """A report as it travels, and its name."""
    encoded, _ = encode(vector, Codec(), rng=np.random.default_rng(1))
    report = ReportContent(
        run="run",
        step=1,
        work=bytes(16),
        client="agent",
        examples=1,
        steps=1,
        loss=0.0,
        numbers={},
        seconds=0.0,
        vectors={"model": encoded},
    )
    return digest(report.packed())


def hashed(vector: Vector) -> bytes:
    """The hash of as many bytes."""
    return digest(vector.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--values", type=int, default=11_191_300)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        command = [sys.executable, "-m", "benchmarks.encoding", *sys.argv[1:], "--inside"]
        settings = worker_environment(threads="1") | {"PYTHONSAFEPATH": ""}
        subprocess.run(command, env=settings, check=True)
        return
    configure_torch()
    with foreign_load() as load:
        found = rows(options.values, options.times)
    show("encoding", f"a vector of {options.values:,} values", found, load, options.out)


if __name__ == "__main__":
    main()
