"""The page docs/from-flower.md, by a script that only pastes its commands: seconds from a clone to its table.

    python -m benchmarks.flower_page --out benchmarks/results/flower_page.json

It clones this checkout, makes an environment, installs Covey as docs/quickstart.md does (without torch, which this page does not
need), saves the files of the page, and runs its commands up to the first table, with another port.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.processes import ROOT, free_port
from tests.test_docs_sessions import Commands, Printed, SavedFile, assert_printed, steps, stripped

PAGE = "docs/from-flower.md"
EXTRAS = ".[coordinator,broker,agent-light]"


def pasted(folder: Path) -> dict[str, float]:
    """The seconds of each part."""
    clone, programs = folder / "covey", folder / "env" / "bin"
    seconds: dict[str, float] = {}

    def run(part: str, *command: str, cwd: Path) -> str:
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, check=True
        )
        seconds[part] = round(seconds.get(part, 0.0) + time.monotonic() - began, 1)
        return done.stdout

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(programs), environment["PATH"]])
    environment["COLUMNS"] = "140"
    run("clone", "git", "clone", "-q", str(ROOT), str(clone), cwd=folder)
    run("environment", sys.executable, "-m", "venv", str(folder / "env"), cwd=folder)
    pip = (str(programs / "pip"), "install", "-q", "--constraint", "constraints.txt", EXTRAS)
    run("install", *pip, cwd=clone)
    text = (clone / PAGE).read_text("utf-8").replace("1883", str(free_port()))
    printed = ""
    with ExitStack() as stack:
        for step in steps(text):
            match step:
                case SavedFile(name, content):
                    (folder / name).write_text(content, "utf-8")
                case Commands(lines, in_background=True):
                    for line in lines:
                        program = subprocess.Popen(
                            shlex.split(f"bash -c {shlex.quote(f'exec {line}')}"),
                            cwd=folder,
                            env=environment,
                            stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL,
                        )
                        stack.callback(program.wait, 30)
                        stack.callback(program.terminate)
                case Commands(lines):
                    for line in lines:
                        printed = run("page", "bash", "-c", line, cwd=folder)
                case Printed(lines):
                    assert_printed(lines, stripped(printed))
                    break
    return {**seconds, "all": round(sum(seconds.values()), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = pasted(Path(name))
    print(found)
    if options.out is not None:
        options.out.write_text(json.dumps({"page": PAGE, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
