"""What must hold after a run, whatever had happened to it. Pure: from what was read from disk to what is wrong."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covey.shared.candidate_names import REFITS
from covey.shared.strategies.phase_names import EVALUATE
from tests.kit import spooled


def model_digests(run: Path) -> dict[str, str]:
    """A digest for each final model of a run."""
    return {
        path.name: hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in sorted((run / "models").iterdir())
    }


def folds(rows: Sequence[Mapping[str, Any]], rounds: int, agents: Iterable[str]) -> list[str]:
    """The faults of a record: each round and each phase must be folded once, and always with all agents."""
    phases = [row for row in rows if row["event"] == "phase"]
    wrong: list[str] = []
    steps = [row["step"] for row in phases]
    if steps != sorted(set(steps)):
        wrong.append(f"steps are {steps}")
    ended = [row["round"] for row in phases if row["ends_round"]]
    if ended != list(range(rounds)):
        wrong.append(f"rounds that were folded are {ended}")
    all_agents = sorted(agents)
    seen = Counter[tuple[int, str]]()
    last = max((row["round"] for row in phases), default=0)
    for row in phases:
        key = (row["round"], row["phase"])
        seen[key] += 1
        is_last = key == (last, EVALUATE)  # devices weigh what they use again
        if seen[key] > (1 + REFITS if is_last else 1):
            wrong.append(
                f"phase {row['phase']} of round {row['round']} was folded {seen[key]} times"
            )
        reported = row["reported"]
        if sorted(reported) != all_agents:
            different = len(set(reported))
            wrong.append(
                f"step {row['step']} was folded with {len(reported)} reports, {different} of them different"
            )
    return wrong


def accepted(
    rows: Sequence[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], runs: Iterable[str]
) -> list[str]:
    """Reports that an agent was promised to be accepted, and that no fold has used. `events` are those of the fleet."""
    used: set[tuple[str, int]] = set()
    void: set[int] = set()
    for row in rows:
        if row["event"] == "phase":
            used |= {(agent, row["step"]) for agent in row["reported"]}
        elif row["event"] == "void":
            void.add(row["step"])
    known = set(runs)
    of_run: dict[str, str] = {}
    lost = []
    for event in events:
        agent = str(event.get("agent", ""))
        if event["event"] == "run":
            of_run[agent] = event["run"]
        if event["event"] != "accepted" or of_run.get(agent) not in known:
            continue
        step = event["step"]
        if step not in void and (agent, step) not in used:
            lost.append(f"the report of {agent} for step {step} was accepted and never folded")
    return lost


def crashes(log: str) -> list[str]:
    """Tracebacks in a program's output."""
    found = []
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip(" |+").startswith("Traceback"):
            found.append("\n".join(lines[number : number + 40])[-1500:])
    return found


def leftovers(run: Path) -> list[str]:
    """Accepted reports that still lie in the spool of a run that is over."""
    return [f"{path} is left" for path in spooled.files(run)]
