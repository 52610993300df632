"""`coordinator doctor --watch`: each alarm is reported once, and once more when it is over. Nothing is reported twice after a restart.

An alarm is one kind of oddity of one device. A file keeps the reported ones, and a command that fails is asked again at the next look.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from covey.coordinator.odd import BROKER, Odd, read_odd
from covey.shared.errors import UserError
from covey.shared.storage import json_text
from covey.shared.storage.files import private_folder, write_atomically

LIMIT_S = 60.0  # that a command may run
BEGUN, OVER = "begun", "over"

Key = tuple[str, str]  # device and kind
Reported = Mapping[Key, Odd]  # of one device each
Report = Callable[[str, Odd], bool]  # whether somebody knows now


@dataclass(frozen=True)
class News:
    """One thing to report; devices about which the same is odd are one."""

    word: str  # BEGUN or OVER
    odd: Odd


def news(known: Reported, now: Sequence[Odd]) -> list[News]:
    """What has changed since. While the broker cannot be reached nothing is over, for nobody knows."""
    present = {(device, one.kind) for one in now for device in one.devices}
    found: list[News] = []
    for one in now:
        new = tuple(device for device in one.devices if (device, one.kind) not in known)
        if new:
            found.append(News(BEGUN, replace(one, devices=new)))
    if (BROKER, "broker") not in present:
        ended: dict[object, Odd] = {}
        for key, one in known.items():
            if key not in present:
                ended[one.likeness] = ended.get(one.likeness, one).joined(one)
        found += [News(OVER, one) for one in ended.values()]
    return found


def look(
    reported: Reported, now: Sequence[Odd], report: Report, keep: Callable[[Reported], None]
) -> dict[Key, Odd]:
    """Report what has changed; returns what is reported then. A report that reached nobody counts as none.

    `keep` gets all that is reported after each report: a watch that ends between two of them repeats none.
    """
    known = dict(reported)
    for one in news(reported, now):
        if not report(one.word, one.odd):
            continue
        for device in one.odd.devices:
            key = device, one.odd.kind
            if one.word == BEGUN:
                known[key] = replace(one.odd, devices=(device,))
            else:
                known.pop(key)
        keep(known)
    return known


def read_reported(file: Path) -> dict[Key, Odd]:
    """The alarms that were reported before; none if the file is missing or damaged: twice is better than never."""
    try:
        saved = read_odd(json_text.loads(file.read_bytes()))
    except (OSError, ValueError):
        return {}
    return {(one.devices[0], one.kind): one for one in saved}


def write_reported(file: Path, known: Reported) -> None:
    """Keep them through a restart."""
    private_folder(file.parent)
    content = json_text.dumps([one.to_json() for one in known.values()])
    write_atomically(file, content.encode())


def command_of(text: str) -> tuple[str, ...]:
    """The words of a command. Raises UserError if there are none, or a quotation has no end."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"--exec {text}: {error}; close the quotation") from None
    if not words:
        raise UserError("--exec: expected a command, such as 'notify-send Covey'")
    return words


def run(words: Sequence[str], word: str, odd: Odd, complain: Callable[[str], None]) -> bool:
    """Run a command with the alarm as its last argument, and its parts as variables. No shell reads them."""
    about = {"COVEY_ALARM": word, "COVEY_KIND": odd.kind, "COVEY_DEVICES": " ".join(odd.devices)}
    about |= {"COVEY_WHAT": odd.what, "COVEY_NEXT": odd.next}
    last = odd.sentence if word == BEGUN else f"over: {odd.who}: {odd.what}"
    try:
        code = _code_of([*words, last], {**os.environ, **about})
    except subprocess.TimeoutExpired:
        why = f"did not end within {LIMIT_S:g} s, and was stopped"
    except OSError as error:
        why = f"could not be started: {error}"
    else:
        why = f"ended with {code}" if code else ""
    if why:
        complain(f"{words[0]} {why}; it is tried again at the next look")
    return not why


def _code_of(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a command. One that hangs is ended with all that it has started: a night has many looks."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, stdin=quiet, env=environment, start_new_session=True) as process:
        try:
            return process.wait(LIMIT_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
