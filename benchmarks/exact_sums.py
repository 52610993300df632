"""Order-free sums: their cost next to plain float64 sums, their error, their bytes, and the close of a large phase.

    python -m benchmarks.exact_sums [--times 9] [--reports 1000] [--out runs/bench]

- Cost. The floor of `add` is a running float64 sum, that of `mean` the plain mean of vectors that are all at hand.
- Error, over 1 000 weighted reports: next to the exact sum, which is computed with fractions.
- Bytes: how many different results 1 000 random orders of the same reports give, on up to eight shards.
- Close: a coordinator without a network takes 1 000 reports of 44 426 parameters. `fold` is the time from the last
  report to the new model, `accept` the processor time for each report before that, `growth` that of the peak memory
  during the fold. "spool" reads all reports again, as every phase did before; "arrivals" has added them up.

Prints tables, writes exact_sums.json below --out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import OUT, Row, cost_of, foreign_load, in_turns, show
from benchmarks.reports import scenario
from covey.coordinator.engine.events import Joined
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.effects import Effect, SendOrder
from covey.coordinator.run.run import Run
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.exact_sum import ExactMean, ExactSum, weighted_mean
from covey.shared.numerics.vectors import Layout, Tensor, Vector, mean
from covey.shared.scenario.scenario import Scenario
from tests.kit.parrot import Parrot
from tests.kit.small_run import rules

PARAMETERS = 44_426  # LeNet-5
LARGE = 11_200_000
CASES = ((PARAMETERS, 100), (LARGE, 8))  # length, number of vectors
TERMS = 1000  # of the sums whose error is measured
COORDINATES = 500
ORDERS = 1000
SHARDS = 8
MODES = ("spool", "arrivals")

Sum = npt.NDArray[np.float64]
Pairs = list[tuple[Vector, float]]


def reports(size: int, number: int, seed: int = 0) -> Pairs:
    """Vectors of a trained model's size with numbers of samples as weights."""
    draw = np.random.default_rng(seed)
    pairs: Pairs = []
    for _ in range(number):
        vector = draw.standard_normal(size, np.float32) * np.float32(0.05)
        samples = draw.integers(20, 600)
        pairs.append((vector, float(samples)))
    return pairs


# -- cost ------------------------------------------------------------------------------------------


def costs(times: int) -> list[Row]:
    """The cost of one vector: added on arrival, and in the mean of all."""
    found: list[Row] = []
    for size, number in CASES:
        pairs = reports(size, number)
        running = np.zeros(size)
        exact = ExactSum(size)

        def plain_add(pairs: Pairs = pairs, running: Sum = running) -> None:
            for vector, weight in pairs:
                term = vector.astype(np.float64)
                term *= weight
                np.add(running, term, out=running)

        def exact_add(pairs: Pairs = pairs, exact: ExactSum = exact) -> None:
            for vector, weight in pairs:
                exact.add(vector, weight)

        found.append(
            in_turns(
                f"add {number} x {size:,}",
                lambda work=plain_add: cost_of(work),  # type: ignore[misc]
                lambda work=exact_add: cost_of(work),  # type: ignore[misc]
                times,
            )
        )
        found.append(
            in_turns(
                f"mean of {number} x {size:,}",
                lambda pairs=pairs: cost_of(lambda: mean(pairs)),  # type: ignore[misc]
                lambda pairs=pairs: cost_of(lambda: weighted_mean(pairs)),  # type: ignore[misc]
                times,
            )
        )
    return found


def partial_sum() -> dict[str, Any]:
    """What an aggregator sends for 100 reports, and the cost of taking it in."""
    total = Accumulator()
    for vector, weight in reports(PARAMETERS, 100):
        total.add("0", vector, weight)
    content = total.to_bytes()
    read = cost_of(lambda: Accumulator.from_bytes(content), 20)
    other = Accumulator.from_bytes(content)
    merge = cost_of(lambda: total.merge(other), 20)
    return {
        "bytes": len(content),
        "bytes_of_100_reports": 100 * 4 * PARAMETERS,
        "read_ms": round(read.cpu_s * 1e3, 3),
        "merge_ms": round(merge.cpu_s * 1e3, 3),
    }


# -- error and bytes -------------------------------------------------------------------------------


def errors() -> dict[str, Any]:
    """Errors relative to the exact sum, and how many float32 means are not the nearest to the exact one."""
    pairs = reports(COORDINATES, TERMS, seed=1)
    exact: list[Fraction] = []
    for place in range(COORDINATES):
        total = Fraction(0)
        for vector, weight in pairs:
            total += Fraction(float(vector[place])) * Fraction(weight)
        exact.append(total)
    plain = np.zeros(COORDINATES)
    order_free = ExactSum(COORDINATES)
    for vector, weight in pairs:
        plain += vector.astype(np.float64) * weight
        order_free.add(vector, weight)
    weights = Fraction(sum(weight for _, weight in pairs))
    nearest = np.array([float(total / weights) for total in exact]).astype(np.float32)
    return {
        "plain": _worst(plain, exact),
        "order_free": _worst(order_free.value(), exact),
        "plain_means_off": int(np.sum(mean(pairs) != nearest)),
        "order_free_means_off": int(np.sum(weighted_mean(pairs) != nearest)),
        "coordinates": COORDINATES,
        "terms": TERMS,
    }


def _worst(found: Sum, exact: Sequence[Fraction]) -> float:
    worst = 0.0
    for value, total in zip(found.tolist(), exact, strict=True):
        error = abs(Fraction(value) - total) / abs(total)
        worst = max(worst, float(error))
    return worst


def different_results() -> dict[str, int]:
    """Different bytes of the float64 sum over random orders; the order-free one also over shards and trees."""
    pairs = reports(100, 100, seed=2)
    samples = sum(weight for _, weight in pairs)
    pairs = [(vector, weight / samples) for vector, weight in pairs]  # n_i / n, as in a mean
    plain: set[bytes] = set()
    order_free: set[bytes] = set()
    for seed in range(ORDERS):
        draw = np.random.default_rng(seed)
        running = np.zeros(100)
        shards = [ExactMean(100) for _ in range(draw.integers(1, SHARDS + 1))]
        for place in draw.permutation(len(pairs)):
            vector, weight = pairs[place]
            running += vector.astype(np.float64) * weight
            shards[draw.integers(len(shards))].add(vector, weight)
        while len(shards) > 1:
            last = shards.pop()
            shards[draw.integers(len(shards))].merge(last)
        plain.add(running.tobytes())
        order_free.add(shards[0].total.value().tobytes())
    return {"orders": ORDERS, "plain": len(plain), "order_free": len(order_free)}


# -- the close of a large phase --------------------------------------------------------------------


def close(mode: str, number: int, folder: Path) -> dict[str, Any]:
    """The figures of one phase in this process."""
    scene = Scenario.model_validate(scenario(number, 1))
    layout = Layout((Tensor("fc.weight", (PARAMETERS,)),), trainable=1)
    setup = setup_of(scene, [np.zeros(PARAMETERS, np.float32)], layout)
    run = Run.start(
        folder, scene, setup, rules=rules(scene, start_agents=number), run="r1", now=0.0
    )
    run.store.durable = False
    if mode == "spool":
        run.open_folding.give_up()
    effects: list[Effect] = []
    for place in range(number):
        client = f"agent-{place:05d}"
        run.members.of(client).samples = (10, 0)
        effects += run.handle(Joined(client), 0.0)
    orders = [effect for effect in effects if isinstance(effect, SendOrder) and effect.order.work]
    accept_s = 0.0
    for send in orders:
        content = Parrot(send.client, "").content(send.order)
        peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        run.accept(send.client, content, 0.0)
        if send is not orders[-1]:
            accept_s += time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    fold = next(line for line in lines if line.get("phase") == "train")
    return {
        "mode": mode,
        "reports": len(orders),
        "fold_s": fold["fold_seconds"],
        "accept_ms": round(accept_s / (len(orders) - 1) * 1e3, 3),
        "peak_mb": round(peak / 1024, 1),
        "growth_mb": round((peak - peak_before) / 1024, 1),
    }


def closes(number: int) -> list[dict[str, Any]]:
    """Each mode in a process of its own, whose peak memory is its own."""
    found = []
    for mode in MODES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.exact_sums", "--close", mode, folder]
            command += ["--reports", str(number)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            last_line = done.stdout.splitlines()[-1]
            found.append(json.loads(last_line))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact_sums")
    parser.add_argument("--times", type=int, default=9, help="measurements of each row")
    parser.add_argument("--reports", type=int, default=1000, help="of the phase that is closed")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of exact_sums.json")
    parser.add_argument("--close", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.close:
        mode, folder = options.close
        print(json.dumps(close(mode, options.reports, Path(folder))))
        return
    others = {
        "partial_sum": partial_sum(),
        "errors": errors(),
        "results": different_results(),
        "close": closes(options.reports),
    }
    with foreign_load() as load:
        rows = costs(options.times)
    show("exact_sums", "Order-free sums", rows, load, options.out)
    file = options.out / "exact_sums.json"
    content = json.loads(file.read_text()) | others
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(others, indent=1))


if __name__ == "__main__":
    main()
