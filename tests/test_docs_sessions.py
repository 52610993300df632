"""What the documentation shows as a session runs, page by page, as a reader would type it.

All blocks of a page marked `console run` are run in order, in one folder that has the scenarios at first. Programs of a
block marked `console run in the background` start together and live until the page ends: a reader has terminals for
them. A block whose first line is a comment with a path (`# first.yaml`) is a file that the reader saves.
Of one marked `console run, refused` the last command must end with an error.
A block marked `text printed` or `yaml printed` holds lines that the commands before it print, in this order; `...` in a
line stands for any characters. The broker's usual ports become free ones, and the home folder a new one.

Our programs are forks of the server of `tests.forked`.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.forked import Forked, Start
from tests.processes import free_port
from tests.test_docs import PAGES, ROOT

USUAL_PORTS = ("1883", "8883")
REFUSED = 77  # of a block whose last command was refused
LIMIT_S = 420.0  # for all commands of one block
ODD = ("odd: ", "# look at these devices first")  # heads of the list of odd devices
OF_FAULTS = ("events.md",)  # pages on which something is odd on purpose
WIDTH = 80  # of the reader's terminal; no table is wider
INTERVAL_S = 0.02  # of the looks after a program
# `pip install ./folder` reaches no index, takes the setuptools that are here, and leaves this environment as it is
OFFLINE_PIP = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
LANGUAGES = r"text printed|yaml printed|console run in the background|console run, refused|console run|yaml|python|toml"
FENCE = re.compile(rf"^```({LANGUAGES})[ ]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w/.-]+\.(?:yaml|py|toml))\n")


@dataclass(frozen=True)
class SavedFile:
    """A file that the reader saves."""

    name: str
    text: str


@dataclass(frozen=True)
class Commands:
    """The commands of one block."""

    lines: tuple[str, ...]
    in_background: bool = False
    is_refused: bool = False  # the last one ends with another exit code than 0


@dataclass(frozen=True)
class Printed:
    """Lines that the commands of the block before must have printed, in this order."""

    lines: tuple[str, ...]


Step = SavedFile | Commands | Printed


def steps(markdown: str) -> Iterator[Step]:
    """What a reader of a page does, in order."""
    for match in FENCE.finditer(markdown):
        language, body = match[1], match[2]
        name = FILE_NAME.match(body)
        if language.endswith("printed"):
            yield Printed(stripped(body))
        elif language.startswith("console"):
            lines = body.replace("\\\n", " ").splitlines()
            commands = tuple(line[2:] for line in lines if line.startswith("$ "))
            yield Commands(
                commands,
                in_background=language.endswith("background"),
                is_refused=language.endswith("refused"),
            )
        elif name is not None:
            yield SavedFile(name[1], body)


def stripped(text: str) -> tuple[str, ...]:
    """The lines of a text without spaces at their ends, and without empty lines."""
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


def is_session(page: Path) -> bool:
    return any(isinstance(step, Commands) for step in steps(page.read_text("utf-8")))


SESSIONS = [page for page in PAGES if page.exists() and is_session(page)]


def in_own_folder(folder: Path) -> dict[str, str]:
    """An environment in which our programs are found and nothing of the reader's own home is touched."""
    programs = str(Path(sys.executable).parent)
    installed = str(folder / "installed")
    paths = [installed, str(ROOT), str(ROOT / "src")]
    return {
        **os.environ,
        **OFFLINE_PIP,
        "PIP_TARGET": installed,
        "HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(folder / "bin"), programs, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": str(WIDTH),
    }


STAND_IN = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect("{address}")
    start = ["{module}", *sys.argv[1:]], dict(os.environ), os.getcwd(), f"/proc/{{os.getpid()}}/fd/1"
    asked.sendall(json.dumps(start).encode() + b"\\n")
    code = int(asked.makefile().readline())
os._exit(code if code >= 0 else 128 - code)
"""


OVER = Event()  # the page has ended


class Asked(socketserver.StreamRequestHandler):
    """A stand-in asks for its program, whose output goes where its own would, and which ends with it."""

    def handle(self) -> None:
        this = Forked(Start(*json.loads(self.rfile.readline())))
        is_gone = select.poll()
        is_gone.register(self.connection, select.POLLIN | select.POLLHUP)
        end = time.monotonic() + LIMIT_S
        while this.poll() is None and time.monotonic() < end and not OVER.is_set():
            if is_gone.poll(INTERVAL_S * 1000):  # it sends nothing more
                break
        if this.poll() is None:
            ended(this)
            return
        self.wfile.write(b"%d\n" % this.wait())


@contextmanager
def stand_ins(folder: Path) -> Iterator[None]:
    """Programs that ask for forks, in the folder that is first on the path."""
    address = folder / "forks"
    for program in ("coordinator", "agent", "broker"):
        path = folder / "bin" / program
        module = f"covey.{program}.cli"
        path.write_text(
            STAND_IN.format(python=sys.executable, address=address, module=module), "utf-8"
        )
        path.chmod(0o755)
    with socketserver.ThreadingUnixStreamServer(str(address), Asked) as server:
        OVER.clear()
        Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield
        finally:
            OVER.set()  # what still runs in the background of a block ends with the page
            server.shutdown()


def started(command: str, folder: Path, log: Path) -> subprocess.Popen[bytes] | Forked:
    """A program that lives until the page ends."""
    program, *options = shlex.split(command)
    if (folder / "bin" / program).exists():
        start = [f"covey.{program}.cli", *options]
        return Forked(Start(start, in_own_folder(folder), str(folder), str(log)))
    with log.open("ab") as file:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=in_own_folder(folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


def ended(process: subprocess.Popen[bytes] | Forked) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_sessions_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COVEY_LEARNER", "numpy")  # workers start in a tenth of torch's time
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    text = page.read_text("utf-8")
    for port in USUAL_PORTS:
        text = text.replace(port, str(free_port()))
    log = tmp_path / "background.log"
    log.touch()
    output: tuple[str, ...] = ()  # of the last commands
    with ExitStack() as stack:
        if sys.platform == "linux":
            stack.enter_context(stand_ins(tmp_path))
        for step in steps(text):
            match step:
                case SavedFile(name, content):
                    path = tmp_path / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(content, "utf-8")
                case Commands(lines, in_background=True):
                    for line in lines:
                        stack.callback(ended, started(line, tmp_path, log))
                case Commands(lines):
                    output = stripped(run(lines, tmp_path, log, is_refused=step.is_refused))
                    assert [line for line in in_tables(output) if len(line) > WIDTH] == []
                    odd = [line for line in output if line.lstrip().startswith(ODD)]
                    assert odd == [] or page.name in OF_FAULTS, "\n".join(output)
                case Printed(lines):
                    assert_printed(lines, output)


def run(lines: tuple[str, ...], folder: Path, log: Path, *, is_refused: bool = False) -> str:
    """Run the commands of one block; the first one that fails fails the test, but for a last one that is to be refused.

    Returns what they print.
    """
    *before, last = lines
    if is_refused:
        last = f"{{ {last}; }} && exit 0 || exit {REFUSED}"
    script = "\n".join(["set -euo pipefail", *before, last])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=in_own_folder(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    expected = REFUSED if is_refused else 0
    assert done.returncode == expected, f"{done.stdout}\n{log.read_text('utf-8')[-3000:]}"
    return done.stdout


BOX = "│┃─━"  # of tables


def in_tables(output: Sequence[str]) -> list[str]:
    """The lines of tables, with a frame or with a rule below the heads."""
    found: list[str] = []
    is_below = False
    for line in output:
        has_rule = len(line) > 1 and set(line) <= {*BOX, " "} and "─" in line
        is_below = has_rule or (is_below and "  " in line)
        if is_below or any(sign in line for sign in BOX):
            found.append(line)
    return found


def test_the_lines_of_a_table_are_found_with_and_without_a_frame() -> None:
    framed = ["┏━━━┓", "┃ a ┃", "│ 1 │"]
    bare = [" ─── ── ", " 1    2"]
    assert in_tables(["said", *framed, "done"]) == framed
    assert in_tables(["said", *bare, "done: two words"]) == bare


def assert_printed(lines: Sequence[str], output: Sequence[str]) -> None:
    """All lines of a block are in the output, in their order."""
    remaining = iter(output)
    for line in lines:
        pattern = ".*".join(map(re.escape, line.split("...")))
        found = any(re.fullmatch(pattern, printed) for printed in remaining)
        assert found, f"{line!r} is not printed, or not in this place:\n" + "\n".join(output)


def test_printed_lines_are_compared_in_order_and_dots_stand_for_anything() -> None:
    output = ["one 1", "two", "three 3 %", "two"]
    assert_printed(["one ...", "three ... %", "two"], output)
    for wrong in (["two", "one 1"], ["one"], ["three ..."] * 2):
        with pytest.raises(AssertionError, match="is not printed"):
            assert_printed(wrong, output)


def test_the_steps_of_a_page_are_found_in_order() -> None:
    page = (
        "```yaml\n# a.yaml\nname: a\n```\n"
        "```yaml\nname: shown only\n```\n"
        "```console run in the background\n$ broker up\n```\n"
        "```console run\n$ one \\\n  two\noutput\n$ three\n```\n"
        "```sh\n$ shown only\n```\n"
        "```yaml printed\na: 1\n\nb: 2 \n```\n"
    )
    assert list(steps(page)) == [
        SavedFile("a.yaml", "# a.yaml\nname: a\n"),
        Commands(("broker up",), in_background=True),
        Commands(("one    two", "three"), in_background=False),
        Printed(("a: 1", "b: 2")),
    ]
