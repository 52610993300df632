"""One client of Flower under Flower's simulation and over MQTT, next to the same network as our own learner.

    python -m venv /tmp/flower && /tmp/flower/bin/pip install 'flwr[simulation]' scikit-learn
    python -m benchmarks.flower_clients --flower /tmp/flower/bin/python --out benchmarks/results/flower_clients.json

`examples/flower_client.py` is softmax regression on digits, our model `linear`; all train one epoch of batches of ten at rate
0.1 in each round. Seeds draw the order of samples. Six `agent start` and Mosquitto run for ours. Without `--flower`, or where
it has no flwr, that row is left out with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from covey.examples.flower_client import load_data
from tests.processes import ROOT, Program, free_port, mosquitto, result

AGENTS = 6
ROUNDS = 10
LIMIT_S = 300.0
SIDE = Path(__file__).with_name("flower_clients_side.py")
EXAMPLES = str(ROOT / "examples")
CLIENT = "flower:flower_client:client_fn"
TASK = {"features": [64], "classes": 10}


def flower(python: str, seed: int) -> dict[str, Any] | None:
    """The accuracies of Flower's simulation; None, with a message, where it cannot run."""
    done = subprocess.run(
        [python, str(SIDE), str(ROUNDS), str(seed)],
        env={**os.environ, "PYTHONPATH": EXAMPLES, "FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        print(f"Flower's row is left out: {done.stderr.strip().splitlines()[-1]}")
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def ours(model: str, method: dict[str, Any], seed: int) -> tuple[float, float]:
    """The accuracy (micro) of six devices over Mosquitto, and the seconds from their start to the table."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        stack.enter_context(mosquitto(folder, port))
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([EXAMPLES, before])
        stack.callback(os.environ.__setitem__, "PYTHONPATH", before)
        scenario = {
            "name": "clients",
            "seed": seed,
            "task": {**TASK, "model": model},
            "training": {"epochs": 1, "batch": 10, "lr": 0.1},
            "strategy": method,
            "rounds": {"count": ROUNDS, "participation": 1.0, "start_agents": AGENTS},
        }
        (folder / "clients.yaml").write_text(yaml.safe_dump(scenario))
        began = time.monotonic()
        for number in range(AGENTS):
            agent = program(device(folder, port, model, number), folder / f"{number}.log")
            stack.callback(agent.stop)
        command = ["covey.coordinator.cli", "run", str(folder / "clients.yaml"), "--broker"]
        command += [f"mqtt://127.0.0.1:{port}", "--out", str(folder / "run")]
        run = program([*command, "--allow", "flower_client"], folder / "run.log")
        stack.callback(run.stop)
        assert run.process.wait(LIMIT_S) == 0, run.output
        return result(folder / "run")["accuracy"]["server"]["accuracy"]["micro"], (
            time.monotonic() - began
        )


def program(command: list[str], log: Path) -> Program:
    """A process that imports what it needs itself, as a user's does."""
    return Program([sys.executable, "-m", *command], log, module=False)


def device(folder: Path, port: int, model: str, number: int) -> list[str]:
    """The command line of an agent with the client, or with our own learner on the same samples."""
    command = ["covey.agent.cli", "start", "--id", f"device-{number}"]
    command += ["--broker", f"mqtt://127.0.0.1:{port}", "--state", str(folder / f"state-{number}")]
    if model == CLIENT:
        node = f"partition-id={number} num-partitions={AGENTS}"
        return [*command, "--learner", CLIENT, "--allow", "flower_client", "--data", node]
    x, y, test_x, test_y = load_data(number, AGENTS)  # type: ignore[no-untyped-call]  # as people write it
    data = folder / f"{number}.npz"
    np.savez(data, x_train=x, y_train=y, x_test=test_x, y_test=test_y)
    return [*command, "--learner", "numpy", "--data", str(data)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--flower", help="a Python interpreter that has flwr[simulation]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    if options.flower is None:
        print("Flower's row is left out: name an interpreter that has flwr[simulation] by --flower")
    else:
        runs = [flower(options.flower, seed) for seed in options.seeds]
        found = [run for run in runs if run is not None]
        if found:
            rows[f"Flower {found[0]['flwr']}, fedavg"] = row([run["accuracy"][-1] for run in found])
    for name, model, method in (
        ("Covey, the same client, fedavg", CLIENT, {"name": "fedavg"}),
        ("Covey, the model linear, fedavg", "linear", {"name": "fedavg"}),
        ("Covey, the same client, fedclust", CLIENT, {"name": "fedclust", "gate": "none"}),
    ):
        measured = [ours(model, method, seed) for seed in options.seeds]
        rows[name] = row([share for share, _ in measured])
        rows[name]["seconds"] = round(statistics.median(seconds for _, seconds in measured), 1)
        print(name, rows[name], flush=True)
        if options.out is not None:
            settings = {"agents": AGENTS, "rounds": ROUNDS, "seeds": options.seeds}
            content = {"settings": settings, "rows": rows}
            options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def row(shares: list[float]) -> dict[str, Any]:
    """Accuracies of some seeds in percent, with their mean."""
    return {
        "accuracy": [round(100 * share, 2) for share in shares],
        "mean": round(100 * statistics.mean(shares), 2),
    }


if __name__ == "__main__":
    main()
