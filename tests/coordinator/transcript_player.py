"""Transcripts of the round engine: text files of events and of the actions that they lead to.

A transcript begins with a sentence about its subject, and with the rules:

    # A plain round: both agents report, and the fold ends the run.
    rules start_agents=2 quorum=2

    0 joined a
    0 joined b
        Plan round=0 rounds=1 attempt=0 present=a,b
        wakes: never

A line that begins with a time (s) is an event; what follows, indented, is what the engine does about it: its actions in
order, and `wakes` where the time changes at which it asks to be called. The same event may be read twice in real life,
so a transcript may repeat it. Besides the engine's events there is

    TIME restarted CLIENTS      a kill: the engine is restored from its snapshot, these reports were in the spool
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from covey.coordinator.engine import events as e
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.shared.strategies.base import Phase, View

NOTHING = {"none", "-"}


def replayed(text: str) -> str:
    """The transcript with the actions that the engine takes now. Raises ValueError for a line that cannot be read."""
    lines: list[str] = []
    player: Player | None = None
    for line in text.splitlines():
        if line.startswith("rules"):
            player = Player(rules(line.split()[1:]))
            lines.append(line)
        elif not line or line.startswith("#"):
            lines.append(line)
        elif not line.startswith(" "):
            if player is None:
                raise ValueError("the rules come before the first event")
            lines.append(line)
            lines += [f"    {answer}" for answer in player.play(line)]
    return "\n".join(lines) + "\n"


class Player:
    """Feeds the engine of one transcript."""

    def __init__(self, rules: RoundRules) -> None:
        self.engine = RoundEngine(rules)
        self._wake_at: float | None = None

    def play(self, line: str) -> Iterator[str]:
        """What the engine does about one event."""
        time, name, *words = line.split()
        now = float(time)
        if name == "restarted":
            snapshot = json.loads(json.dumps(self.engine.snapshot()))
            reported = listed(words[0])
            self.engine, actions = RoundEngine.restore(self.engine.rules, snapshot, reported, now)
        else:
            actions = self.engine.handle(event(name, words), now)
        for action in actions:
            yield shown(action)
        if self.engine.wake_at != self._wake_at:
            self._wake_at = self.engine.wake_at
            yield "wakes: never" if self._wake_at is None else f"wakes: {self._wake_at:g}"


def rules(words: list[str]) -> RoundRules:
    """`key=value` words as rules; a value is JSON."""
    values: dict[str, Any] = {key: json.loads(value) for key, value in pairs(words)}
    if "newcomers" in values:
        values["newcomers"] = frozenset(values["newcomers"])
    return RoundRules(**values)


def pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, _, value = word.partition("=")
        yield key, value


def listed(word: str) -> tuple[str, ...]:
    return () if word in NOTHING else tuple(word.split(","))


def event(name: str, words: list[str]) -> e.Event:
    """An event by its name in small letters, with its fields in order; a reason comes last and may have blanks."""
    first = words[0] if words else ""
    rest = " ".join(words[1:])
    match name:
        case "reported":
            return e.Reported(first, int(words[1]))
        case "failed":
            return e.Failed(first, int(words[1]), " ".join(words[2:]))
        case "refused":
            return e.VoteRefused(first, rest)
        case "unreadable":
            return e.Unreadable(listed(first), int(words[1]))
        case "set_aside":
            return e.SetAside(dict.fromkeys(listed(first), rest))
        case "fold_failed":
            return e.FoldFailed(" ".join(words))
        case "planned":
            return e.Planned(phase(words))
    of_one_agent: dict[str, Callable[[str], e.Event]] = {
        "joined": e.Joined,
        "left": e.Left,
        "release": e.Release,
        "forget": e.Forget,
    }
    if name in of_one_agent:
        return of_one_agent[name](first)
    of_all: dict[str, Callable[[], e.Event]] = {
        "folded": e.Folded,
        "tick": e.Tick,
        "link_lost": e.LinkLost,
        "link_back": e.LinkBack,
        "paused": e.Paused,
        "resumed": e.Resumed,
    }
    if name in of_all:
        return of_all[name]()
    raise ValueError(f"no event is called {name}")


def phase(words: list[str]) -> Phase | None:
    """`NAME [key=value...]`, or `none`; a cohort may be a list of names."""
    name, *others = words
    if name in NOTHING:
        return None
    options: dict[str, Any] = {}
    for key, value in pairs(others):
        if key == "cohort":
            options[key] = value if value in ("all", "sample") else listed(value)
        else:
            options[key] = json.loads(value)
    return Phase(name, **options)


def shown(action: e.Action) -> str:
    """An action with its fields, in words."""
    named = {one.name: getattr(action, one.name) for one in fields(action)}
    if named.get("buffer", "") is None:  # of synchronous rounds there is nothing to show
        del named["buffer"]
    if isinstance(action, e.PlanPhase):
        named = view_words(action.view)
    return " ".join(
        [type(action).__name__, *(f"{key}={word(value)}" for key, value in named.items())]
    )


def view_words(view: View) -> dict[str, Any]:
    return {one.name: getattr(view, one.name) for one in fields(view)}


def word(value: Any) -> str:
    match value:
        case Phase(name=name):
            return name
        case tuple():
            return ",".join(value) or "-"
        case str():
            return json.dumps(value) if " " in value or not value else value
    if isinstance(value, e.Reported | e.Failed | e.Release):
        return type(value).__name__
    return f"{value:g}" if isinstance(value, float) else str(value)
