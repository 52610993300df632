"""A mixed fleet at one Mosquitto: agents of this machine, and agents in a fresh Debian for aarch64 that QEMU runs.

    python -m benchmarks.boards [--userland FOLDER] [--out benchmarks/results/boards.json] [--table]

Three agents train in the userland and three on this machine, and the same six again all on this machine: with NumPy, and with
torch. Each group of labels has an agent of both kinds, so that every mean is one over both.

The userland is made if the folder does not exist yet: a Debian with Python, and in it Covey, installed with the commands of
benchmarks/results/boards.md. It needs Debian, root, indexes of packages, `debootstrap`, `qemu-user-static`, 2 GB of disk and half an hour; the
kernel must know the emulator, which that package sees to where systemd runs (`/proc/sys/fs/binfmt_misc/qemu-aarch64`). Programs
have a mount namespace of their own, so nothing is left when they have ended but the folder, which you remove.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from benchmarks.measuring import Found, record_options, resumed
from tests.processes import ROOT, free_port, mosquitto, program, result, rows, until

OUT = Path("benchmarks/results/boards.json")
SUITE = "bookworm"
MEANS = ("micro", "macro")
WITHIN_S = 3600.0  # for a run: emulated processes start slowly

GROUPS = ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))  # labels; each group has an agent of both kinds
SCENARIO = {
    "name": "boards",
    "seed": 1,
    "task": {
        "features": [64],
        "classes": 10,
        "scale": 0.0625,
        "model": {"name": "mlp", "options": {"hidden": 64}},
    },
    "training": {"epochs": 2, "batch": 10, "lr": 0.1},
    "strategy": {"name": "fedclust", "n_clusters": 3},
    "rounds": {
        "count": 10,
        "participation": 1.0,
        "start_agents": 6,
        "quorum": 6,
        "deadline_s": 1800,
    },
}

PACKAGES = "ca-certificates,git,python3-venv"
CLONE = "root/covey"  # in the userland
PYTHON = "/opt/covey/bin/python"
# in the clone, with the commands of docs/devices.md
INSTALL = (
    "sed 's/^torch==.*/torch==2.10.0/' constraints.txt > board.txt",
    "python3 -m venv /opt/covey",
    "/opt/covey/bin/pip install -c board.txt '.[agent]'",
)
OF_THE_HOST = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")  # to reach the same indexes
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = (
    'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && cd / && exec chroot "$0" "$@"'
)


class Userland:
    """A Debian for aarch64 in a folder, whose programs this machine runs by emulation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *words: str) -> list[str]:
        """A command inside of it, as one of this machine."""
        inside = ["env", PATH, "HOME=/root", *words]
        return ["unshare", "--mount", "sh", "-c", ENTER, str(self.folder), *inside]

    def make(self) -> None:
        """Install Debian, and in it Covey."""
        first = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase"]
        run([*first, f"--include={PACKAGES}", SUITE, self.folder])
        run(self.command("/debootstrap/debootstrap", "--second-stage"))
        for file in OF_THE_HOST:
            shutil.copy(Path("/") / file, self.folder / file)
        run(["git", "clone", "--quiet", ROOT, self.folder / CLONE])
        for line in INSTALL:
            run(self.command("sh", "-c", f"cd /{CLONE} && {line}"))


def run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True)


@dataclass(frozen=True)
class Cell:
    """The same fleet twice: mixed, and all on this machine."""

    learner: str
    userland: Userland

    @property
    def key(self) -> str:
        return self.learner


def measured(cell: Cell) -> dict[str, Any]:
    """Figures of both runs, and how far apart their models are: the largest distance, as a share of the model's length."""
    with tempfile.TemporaryDirectory() as mixed, tempfile.TemporaryDirectory() as usual:
        run_of(cell.learner, cell.userland, Path(mixed))
        run_of(cell.learner, None, Path(usual))
        runs = [Path(folder) / "run" for folder in (mixed, usual)]
        pairs = zip(*map(models, runs), strict=True)
        apart = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs]
        return {"mixed": figures(runs[0]), "usual": figures(runs[1]), "apart": max(apart)}


def run_of(learner: str, userland: Userland | None, folder: Path) -> None:
    """One run over a Mosquitto of its own; if there is a userland, every second agent lives in it."""
    scenario = folder / "boards.yaml"
    scenario.write_text(yaml.safe_dump(SCENARIO))
    port = free_port()
    broker = f"--broker=mqtt://127.0.0.1:{port}"
    options = [broker, f"--learner={learner}", "--threads=1", f"--keep-warm={WITHIN_S:g}"]
    with ExitStack() as living:
        living.enter_context(mosquitto(folder, port))
        serve = ["covey.coordinator.cli", "run", str(scenario), broker, f"--out={folder / 'run'}"]
        coordinator = living.enter_context(program(*serve, log=folder / "coordinator.log"))
        for number, (x, y) in enumerate(divided()):
            emulated = userland is not None and number % 2 == 1
            root = userland.folder if userland is not None and emulated else Path("/")
            home = Path(tempfile.mkdtemp(dir=root / "tmp", prefix=f"device-{number}-"))
            np.savez(home / "data.npz", x=x, y=y)
            seen = Path("/") / home.relative_to(root)  # as the agent sees it
            start = ["start", f"--id=device-{number}", f"--data={seen}/data.npz"]
            start += [f"--state={seen}/state", *options]
            if userland is not None and emulated:
                command = userland.command(PYTHON, "-m", "covey.agent.cli", *start)
            else:
                command = [sys.executable, "-m", "covey.agent.cli", *start]
            living.callback(shutil.rmtree, home)
            log = folder / f"device-{number}.log"
            living.enter_context(program(*command, log=log, module=False))
        until(lambda: coordinator.process.poll() is not None, WITHIN_S)
    assert coordinator.process.returncode == 0, coordinator.output


def divided() -> Iterator[tuple[Any, Any]]:
    """The digits (n, 64) and labels of each agent: two agents for each group, which take its samples in turns."""
    digits = load_digits()
    for labels in GROUPS:
        indices = np.flatnonzero(np.isin(digits.target, labels))
        for half in (indices[::2], indices[1::2]):
            yield digits.data[half].astype(np.float32), digits.target[half]


def models(run: Path) -> list[Any]:
    """The models of a run as flat vectors, in the order of the groups of labels."""
    clusters = result(run)["assignment"]
    names = [f"cluster-{clusters[f'device-{2 * group}']}" for group in range(len(GROUPS))]
    files = [load_file(run / "models" / f"{name}.safetensors") for name in names]
    return [np.concatenate([one[key].ravel() for key in sorted(one)]) for one in files]


def figures(run: Path) -> dict[str, Any]:
    """What the record of a run has for the page."""
    ended = result(run)
    clusters = ended["assignment"]
    return {
        "accuracy": ended["accuracy"]["server"]["accuracy"],
        "pairs": sum(clusters[f"device-{i}"] == clusters[f"device-{i + 1}"] for i in (0, 2, 4)),
        "clusters": ended["clusters"],
        "devices": ended["devices"],
        "round_s": statistics.median(r["seconds"] for r in rows(run) if r.get("phase") == "train"),
        "seconds": ended["seconds"],
        "wire": ended["bytes"],
    }


def table(found: Found) -> str:
    """The table of benchmarks/results/boards.md."""
    lines = [
        "| learner | computed on | accuracy, E-server, micro / macro | clusters | a round | the models differ by |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for learner, cell in found.items():
        for fleet in ("usual", "mixed"):
            run = cell[fleet]
            devices = ", ".join(f"{count} × `{name}`" for name, count in run["devices"].items())
            accuracy = " / ".join(f"{100 * run['accuracy'][mean]:.2f} %" for mean in MEANS)
            apart = f"{cell['apart']:.1e}" if fleet == "mixed" else ""
            round_s = f"{run['round_s']:.1f} s"
            shown = [learner, devices, accuracy, str(run["clusters"]), round_s, apart]
            lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, ())
    parser.add_argument("--userland", type=Path, default=Path("runs/aarch64"))
    options = parser.parse_args()
    userland = Userland(options.userland)
    if not options.table and not userland.folder.exists():
        userland.make()
    cells = [Cell(learner, userland) for learner in ("numpy", "torch")]
    print(table(resumed(options, {cell.key: partial(measured, cell) for cell in cells}, SCENARIO)))


if __name__ == "__main__":
    main()
