"""A round of ten agents next to a round of ten Flower clients, and both next to bare MQTT clients.

    python -m venv /tmp/flower && /tmp/flower/bin/pip install flwr
    python -m benchmarks.flower --flower /tmp/flower/bin/python [--kinds agents wide] [--times 3] [--rounds 10]
    python -m benchmarks.flower --flower /tmp/flower/bin/python --superlink --kinds agents --times 1 --rounds 3

Flower has an environment of its own, and needs no torch: its clients return the values that they get. Its server and ten
clients are processes of the form `start_server` and `start_client`, over gRPC on 127.0.0.1, with FedAvg. With `--superlink`
they are what Flower recommends in their place: a SuperLink and ten SuperNodes, which run the app in `benchmarks/flower_app`,
and start a process for each message. Ours are the ten `agent start` of `benchmarks.rounds` (`wide`: a simulated fleet), and
make one step of SGD in each round. The measured rounds follow two others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import rounds as ours
from benchmarks.bare import AGENTS
from benchmarks.measuring import (
    OUT,
    Cost,
    Row,
    cpu_s_of,
    cpu_s_of_trees,
    foreign_load,
    median,
    show,
)
from tests.processes import Program, free_port, free_ports, listens, until

SIDE = Path(__file__).with_name("flower_side.py")
APP = Path(__file__).with_name("flower_app")
LIMIT_S = 900.0
ROLES = ("server", "clients")


def flower(python: str, kind: ours.Kind, rounds: int) -> tuple[Cost, dict[str, float]]:
    """The cost of one round, and the processor time in ms of server and clients."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)

        def start(*arguments: str) -> Program:
            log = folder / "-".join(arguments)
            this = Program([python, str(SIDE), *arguments[:-1]], log, module=False)
            stack.callback(this.stop)
            return this

        port = free_port()
        settings = (str(port), str(kind.parameters), str(rounds))
        server = start("server", *settings, "0")
        until(lambda: listens(port), LIMIT_S, server)
        clients = [start("client", str(port), str(number)) for number in range(AGENTS)]
        pids = {
            "server": [server.process.pid],
            "clients": [client.process.pid for client in clients],
        }
        return cost_of_a_round(lambda: server.output, server, pids, cpu_s_of, rounds)


def superlink(python: str, kind: ours.Kind, rounds: int) -> tuple[Cost, dict[str, float]]:
    """As `flower`, of a SuperLink and ten SuperNodes with all programs that they start."""
    binaries = Path(python).parent
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        settings = {"FLWR_HOME": name, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
        port, *ports = free_ports(1 + AGENTS)

        def start(program: str, *arguments: str) -> Program:
            command = [str(binaries / program), "--insecure", *arguments]
            log = folder / f"{program} {arguments[-1]}"
            this = Program(command, log, module=False, settings=settings)
            stack.callback(this.stop)
            return this

        address = f"127.0.0.1:{port}"
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        link = start(
            "flower-superlink", "--disable-runtime-dependency-installation", "--port", str(port)
        )
        until(lambda: listens(port), LIMIT_S, link)
        nodes = [
            start("flower-supernode", "--superlink", address, "--port", str(own)) for own in ports
        ]
        times = folder / "times"
        chosen = f"times='{times}' rounds={rounds} values={kind.parameters}"
        run = [str(binaries / "flwr"), "run", str(APP), "here", "-c", chosen]
        subprocess.run(run, check=True, capture_output=True, env={**os.environ, **settings})

        def noted() -> str:
            return times.read_text("utf-8") if times.exists() else ""

        pids = {"server": [link.process.pid], "clients": [one.process.pid for one in nodes]}
        return cost_of_a_round(noted, link, pids, cpu_s_of_trees, rounds)


def cost_of_a_round(
    noted: Callable[[], str],
    server: Program,
    pids: Mapping[str, Sequence[int]],
    cpu_s: Callable[[Sequence[int]], float],
    rounds: int,
) -> tuple[Cost, dict[str, float]]:
    """The cost of one round, and the processor time in ms of server and clients.

    Args:
        noted: what the server has written of its times.
        server: whose end ends the wait.
        pids: of each role.
        cpu_s: processor time of some of these so far.
        rounds: that are measured.
    """
    until(lambda: "warm\n" in noted(), LIMIT_S, server)
    before = {role: cpu_s(pids[role]) for role in ROLES}
    until(lambda: "measured" in noted(), LIMIT_S, server)
    used = {role: (cpu_s(pids[role]) - before[role]) / rounds for role in ROLES}
    wall_s = time_of("measured", noted()) - time_of("began", noted())
    return Cost(wall_s / rounds, sum(used.values())), {role: 1e3 * used[role] for role in ROLES}


def time_of(mark: str, output: str) -> float:
    """The time in seconds that the server wrote after a word."""
    for line in output.splitlines():
        if line.startswith(mark):
            return float(line.split()[1])
    raise ValueError(f"the server wrote no line {mark!r}")


def measure(python: str, name: str, times: int, rounds: int, *, recommended: bool) -> list[Row]:
    """Floor, Flower and product in turns."""
    kind = ours.KINDS[name]
    theirs = superlink if recommended else flower
    floors: list[Cost] = []
    others: list[Cost] = []
    products: list[Cost] = []
    by_role: list[dict[str, float]] = []
    by_our_role: list[dict[str, float]] = []
    for _ in range(times):
        floors.append(ours.floor(kind, rounds))
        cost, used = theirs(python, kind, rounds)
        others.append(cost)
        by_role.append(used)
        # the first two rounds and the last one are left out of ours
        cost, used, _packets = ours.product(kind, rounds + 3)
        products.append(cost)
        by_our_role.append(used)
    floor = median(floors)
    our_parts = medians(by_our_role, ours.ROLES)
    their_parts = medians(by_role, ROLES)
    return [
        Row(f"{name}: Covey", floor, median(products), times, our_parts),
        Row(
            f"{name}: Flower{' on a SuperLink' if recommended else ''}",
            floor,
            median(others),
            times,
            their_parts,
        ),
    ]


def medians(found: Sequence[dict[str, float]], roles: Sequence[str]) -> dict[str, float]:
    """The median of each role, in ms."""
    return {role: round(statistics.median(used[role] for used in found), 1) for role in roles}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--flower", required=True, help="a Python interpreter that has flwr")
    parser.add_argument("--kinds", nargs="+", choices=list(ours.KINDS), default=["agents", "wide"])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--superlink", action="store_true", help="Flower's recommended programs")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    command = [options.flower, str(SIDE), "version"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    found: list[Row] = []
    with foreign_load() as load:
        for name in options.kinds:
            found += measure(
                options.flower, name, options.times, options.rounds, recommended=options.superlink
            )
    show(
        "superlink" if options.superlink else "flower",
        f"a round of ten agents; Flower {version}",
        found,
        load,
        options.out,
    )


if __name__ == "__main__":
    main()
