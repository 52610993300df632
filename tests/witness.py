"""A witness of behaviour: shows whether a change has altered any byte, figure or option of the product.

    python -m tests.witness --against tests/witness.json    # exit code 1 and a line for each digest that differs
    python -m tests.witness --json tests/witness.json       # new digests, after a change that is meant to alter something

It makes the same runs each time and prints a short digest of each thing that they leave behind:

- models: the files of the final models, byte for byte, and all arrays of the last checkpoint and of the agents' memories
- records: `rounds.jsonl`, `result.json`, `agents.parquet` and the assignment
- audit: the lines of `audit.jsonl`, in any order; they hold the digests of all models that were sent out
- options: the scenario with every default spelled out
- tables: the rows of `compare.json`, and of `coordinator report --json`

`LEFT_OUT` lists the keys that vary from run to run and are therefore not part of any digest. The digests hold for one
type of CPU, one version of Python and one build of torch, NumPy, SciPy and scikit-learn, for rounding differs between
them. On another machine, check out the commit before your change, make digests there, and compare with those.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load_file

from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from tests.kit import small_run
from tests.kit.small_fleet import over_the_wire
from tests.methods import METHODS

Digests = dict[str, str]  # by name: part/method/thing

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = Path(sys.executable).parent
LIMIT_S = 600.0  # for one command
SMALL_PARTS = {"wire": {"part_bytes": 1024}}  # so small that every model travels in several
BUFFERED = ("fedavg", "fedclust", "fesem")
CELLS = ("local/1", "fedclust/1")  # the cheapest of the comparison: one without clusters, one with
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch")

DURATIONS = {"seconds", "train_seconds", "fold_seconds", "took"}
WIRE_BYTES = {
    "wire_up",
    "wire_down",
}  # hold the lengths of times that are written as text, and of repeated messages
LEFT_OUT = {
    "rounds.jsonl": DURATIONS | WIRE_BYTES,
    "result.json": DURATIONS | WIRE_BYTES | {"versions"},
    "audit.jsonl": {
        "time",
        "owner",  # the run's id
        "sequence",  # reports arrive in any order
        "previous",  # the hashes cover all of the above
        "hash",
    },
    "compare.json": {
        "scenario",  # is in `options`
        "seconds",
        "mb_wire",
        "mb_wire_to_target",
        "target_on",  # a text for people
    },
}


# -- digests ---------------------------------------------------------------------------------------


def digest(content: Any) -> str:
    """Twelve hex digits of bytes, or of anything that JSON can hold; numbers count with all their digits."""
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def without(tree: Any, keys: Collection[str]) -> Any:
    """The same tree of JSON without these keys, at any depth."""
    if isinstance(tree, dict):
        return {key: without(value, keys) for key, value in tree.items() if key not in keys}
    if isinstance(tree, list):
        return [without(item, keys) for item in tree]
    return tree


def models(run: Path, agents: Path) -> list[Any]:
    """What a run's folder and its agents' folders hold of models and of other arrays."""
    files = {path.name: digest(path.read_bytes()) for path in run.glob("models/*.safetensors")}
    state = [
        array
        for path in run.glob("checkpoint/arrays/*.safetensors")
        for array in _arrays(load_file(path))
    ]
    memories = {folder.name: _memory(folder) for folder in agents.glob("*")}
    return [files, sorted(state), memories]


def _memory(agent: Path) -> list[str]:
    """The newest of an agent's memories: memory-<run>-<step>, or memory-<step>.npz."""
    newest = max(
        agent.glob("memory-*"), key=lambda path: int(path.stem.rsplit("-", 1)[1]), default=None
    )
    if newest is None:
        return []
    with np.load(newest, allow_pickle=False) as arrays:
        return sorted(_arrays(arrays))


def _arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    return [
        digest(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
        for array in arrays.values()
    ]


def rounds(run: Path) -> Any:
    return without(_lines(run / "rounds.jsonl"), LEFT_OUT["rounds.jsonl"])


def audit(run: Path) -> list[str]:
    rows = without(_lines(run / "audit.jsonl"), LEFT_OUT["audit.jsonl"])
    for row in rows:
        if (
            "reporters" in row["fields"]
        ):  # by the digests of reports, which hold their training times
            row["fields"]["reporters"] = sorted(row["fields"]["reporters"])
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def result(run: Path) -> Any:
    return without(json.loads((run / "result.json").read_text()), LEFT_OUT["result.json"])


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def finished_run(run: Path) -> Digests:
    """Digests of a folder that `coordinator run` has written."""
    agents = pq.read_table(run / "agents.parquet").to_pylist()
    return {
        "models": digest(models(run, run / "agents")),
        "records": digest([rounds(run), result(run), agents]),
        "audit": digest(audit(run)),
        "options": digest(yaml.safe_load((run / "scenario.yaml").read_text())),
    }


# -- the parts -------------------------------------------------------------------------------------


def in_process(folder: Path, methods: Collection[str] = METHODS) -> Digests:
    """Every method of small_run.py, or these, without a network."""
    return _small_runs(folder, _alone, methods)


def buffered(folder: Path) -> Digests:
    """Buffered rounds of an average, of clusters that are found in the run, and of stored models."""
    return _small_runs(folder, _alone, BUFFERED, small_run.buffered)


def wire(folder: Path) -> Digests:
    """Every method of small_run.py over the broker in memory, as the conformance tests run it."""
    return _small_runs(folder, over_the_wire)


def _alone(place: Path, scene: Scenario) -> Run:
    return small_run.in_process(place / "run", scene)


def _small_runs(
    folder: Path,
    run_in: Callable[[Path, Scenario], Run],
    methods: Collection[str] = METHODS,
    scenario: Callable[..., Scenario] = small_run.judged,
) -> Digests:
    found: Digests = {}
    for method in methods:
        scene = scenario(method, **SMALL_PARTS)
        place = folder / method
        *clusters, assignment = small_run.fingerprint(run_in(place, scene))
        run = place / "run"
        cluster_digests = [digest(model) for model in clusters]
        found |= {
            f"{method}/models": digest([cluster_digests, models(run, place / "agents")]),
            f"{method}/records": digest([rounds(run), assignment.decode()]),
            f"{method}/audit": digest(audit(run)),
            f"{method}/options": digest(scene.model_dump(mode="json")),
        }
    return found


def make_run(folder: Path) -> Digests:
    """What `make run` runs."""
    runs = {"fedclust": folder / "digits", "fedavg": folder / "digits-fedavg"}
    command("coordinator", "run", "scenarios/digits.yaml", "--out", runs["fedclust"])
    changed = ("--set", "strategy.name=fedavg")
    command("coordinator", "run", "scenarios/digits.yaml", *changed, "--out", runs["fedavg"])
    report = command("coordinator", "report", *runs.values(), "--json")
    rows = [json.loads(line) for line in report.splitlines()]
    tables = {"report/tables": digest(without(rows, LEFT_OUT["result.json"]))}
    return _prefixed({method: finished_run(run) for method, run in runs.items()}) | tables


def comparison(folder: Path) -> Digests:
    """Two cells of a comparison whose data needs no download."""
    chosen = [word for cell in CELLS for word in ("--cells", cell)]
    command(
        "coordinator",
        "compare",
        "scenarios/digits_compare.yaml",
        "--in-process",
        *chosen,
        "--out",
        folder,
    )
    document = json.loads((folder / "compare.json").read_text())
    runs = {}
    for cell in CELLS:
        method, seed = cell.split("/")
        runs[method] = finished_run(folder / method / f"seed-{seed}")
    return _prefixed(runs) | {
        "compare/tables": digest(without(document, LEFT_OUT["compare.json"])),
        "compare/options": digest(document["scenario"]),
    }


def _prefixed(runs: Mapping[str, Digests]) -> Digests:
    return {
        f"{method}/{thing}": value
        for method, digests in runs.items()
        for thing, value in digests.items()
    }


def command(program: str, *arguments: str | Path) -> str:
    """What one of our commands prints; ends the witness where the command fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVEY_")}
    line = [str(COMMANDS / program), *map(str, arguments)]
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


PARTS: dict[str, Callable[[Path], Digests]] = {
    "in-process": in_process,
    "buffered": buffered,
    "wire": wire,
    "run": make_run,
    "compare": comparison,
}


# -- the command -----------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """What the digests depend on besides the code."""
    cpu_lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    )
    names = [line.split(":", 1)[1].strip() for line in cpu_lines if line.startswith("model name")]
    packages = {name: version(name) for name in PACKAGES}
    cpu = names[0] if names else platform.processor()
    return {
        "machine": platform.machine(),
        "cpu": cpu,
        "python": platform.python_version(),
        **packages,
    }


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """A line for each name whose digests differ, or that only one side has."""
    names = sorted(expected.keys() | found.keys())
    return [
        f"{name} differs: expected {expected.get(name, 'nothing')}, found {found.get(name, 'nothing')}"
        for name in names
        if expected.get(name) != found.get(name)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a digest differs from the one in the file given with --against."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.witness", description="Digests of what Covey computes."
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; repeatable")
    parser.add_argument("--json", type=Path, help="write the digests to this file")
    parser.add_argument("--against", type=Path, help="compare with the digests in this file")
    options = parser.parse_args(arguments)
    parts = options.only or list(PARTS)
    known = json.loads(options.against.read_text()) if options.against else None

    found: Digests = {}
    with tempfile.TemporaryDirectory(prefix="witness-") as folder:
        for part in parts:
            digests = PARTS[part](Path(folder) / part)
            found |= {f"{part}/{name}": value for name, value in digests.items()}
            show(part, digests)
    whole = digest(found)
    print(f"all of {', '.join(parts)}: {whole}")

    document = {"made_on": machine(), "whole": whole, "digests": found}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if known is None:
        return 0
    expected = {
        name: value for name, value in known["digests"].items() if name.split("/")[0] in parts
    }
    lines = differences(expected, found)
    print(*lines, sep="\n") if lines else print(f"no difference from {options.against}")
    if lines and known["made_on"] != document["made_on"]:
        print(
            f"The digests expected were made on another machine:\n {known['made_on']}\nand this is\n {machine()}"
        )
    return 1 if lines else 0


def show(part: str, digests: Mapping[str, str]) -> None:
    """A line for each method of a part."""
    by_method: dict[str, list[str]] = {}
    for name, value in digests.items():
        method, thing = name.split("/")
        by_method.setdefault(method, []).append(f"{thing} {value}")
    for method, words in by_method.items():
        print(f"{part:<10} {method:<15} {'  '.join(words)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
