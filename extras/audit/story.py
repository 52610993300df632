"""`coordinator lab story`: the history of one agent, read from the audit log in a run's folder.

The log records what the coordinator did and decided: invitations, reports, refusals, folds. It does not record when an
agent was online; `coordinator status` shows which agents are online now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import show_line
from covey.coordinator.record.audit_trail import FILE
from covey.coordinator.view.printed import json_line
from covey.shared.cli import Json
from covey.shared.errors import UserError
from covey.shared.sentences import some
from covey.shared.storage import json_text
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.phase_names import occasion

SHOWN_AGENTS = 5  # named in the message about an agent that the log does not mention

Fields = Mapping[str, Any]


def story(
    agent: Annotated[str, typer.Argument(help="the agent's id, as `coordinator status` shows it")],
    folder: Annotated[Path, typer.Argument(help="a run's folder")],
    as_json: Json = False,
) -> None:
    """Print what happened to one agent in a run, in order: invitations, reports, refusals, quarantine."""
    found = story_of(agent, folder)
    if as_json:
        json_line(found.to_json())
        return
    for sentence in found.sentences:
        show_line(f"{sentence.time}  {sentence.text}")


@dataclass(frozen=True)
class Sentence:
    """One thing that happened to the agent."""

    time: str  # ISO 8601, UTC, as the audit log has it
    text: str


@dataclass(frozen=True)
class AgentStory:
    """The history of one agent in one run, in order."""

    agent: ClientId
    run: str
    sentences: tuple[Sentence, ...]

    def to_json(self) -> dict[str, Any]:
        """The story as `coordinator lab story --json` prints it."""
        lines = [vars(sentence) for sentence in self.sentences]
        return {"agent": self.agent, "run": self.run, "story": lines}


def story_of(agent: ClientId, folder: Path) -> AgentStory:
    """The story of an agent.

    Raises UserError if the folder has no audit log, if a line of the log cannot be read, or if the log does not mention
    the agent.
    """
    run = ""
    invited: dict[int, set[ClientId]] = {}  # by step
    mentioned: set[ClientId] = set()
    sentences: list[Sentence] = []
    for record in _records(folder / FILE):
        event = record["event"]
        fields: Fields = record["fields"]
        if event == "begin":
            run = str(fields.get("owner", ""))
        if event == "order":
            invited.setdefault(fields["step"], set()).update(fields["cohort"])
            mentioned.update(fields["cohort"])
        elif "agent" in fields:
            mentioned.add(fields["agent"])
        cohort = invited.get(fields.get("step", 0), set())
        text = _sentence(agent, event, fields, invited=agent in cohort)
        if text:
            sentences.append(Sentence(record["time"], text))
    if agent not in mentioned:
        raise UserError(f"{folder}: the audit log does not mention {agent}; {_others(mentioned)}")
    return AgentStory(agent, run, tuple(sentences))


def _sentence(agent: ClientId, event: str, fields: Fields, *, invited: bool) -> str:
    """A line of the log as a sentence about the agent; empty if the line is about others."""
    if event.startswith("more_"):
        count = fields["agents"].get(agent, 0)
        kind = event.removeprefix("more_")
        return f"{count} more of these were only counted: {kind}." if count else ""
    match event:
        case "order" if agent in fields["cohort"]:
            when = occasion(fields["phase"], fields["round"])
            return f"Invited to {when}: step {fields['step']}, {fields['phase']}."
        case "fold" if agent in fields["reporters"]:
            return f"Step {fields['step']} was folded with its report."
        case "fold" if agent in fields["missing"]:
            return f"Step {fields['step']} was folded without its report."
        case "void" if invited:
            but = ", also its report" if agent in fields["reporters"] else ""
            return f"Step {fields['step']} came to nothing{but}: {fields['why']}"
        case "start":
            return "The run started."
        case "resume":
            return f"The coordinator was restarted in step {fields['step']}."
        case "stop":
            return "The operator stopped the coordinator."
        case "finish" if fields["why"]:
            return f"The run was given up: {fields['why']}"
        case "finish":
            return "The run was finished."
    if fields.get("agent") == agent:
        return _about(event, fields)
    return ""


def _about(event: str, fields: Fields) -> str:
    """A line that names the agent, as a sentence; empty for other events."""
    match event:
        case "failed":
            return f"It could not do its work: {fields['why']}"
        case "ignored":
            return f"A report was ignored: {fields['why']}"
        case "refuse":
            return f"A message was refused: {fields['why']}"
        case "set_aside":
            return f"Its report was set aside at the fold: {fields['why']}"
        case "quarantine":
            steps = fields["refused"]
            after = f" after refused reports in {steps} steps" if steps else ""
            return f"Quarantined{after}: {fields['why']}"
        case "resting":
            return f"Not invited for some rounds, because it is {fields['kind']}, {fields['why']}."
        case "release":
            return "Released from quarantine."
        case "forget":
            return "Forgotten by the operator."
    return ""


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    """The complete lines of an audit log. Raises UserError if there is no log, or for an unreadable line."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no audit.jsonl in it; expected the folder of a run") from None
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return  # a power cut can leave an incomplete last line
        try:
            record = json_text.loads(line)
            yield {name: record[name] for name in ("event", "fields", "time")}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}, line {number}: cannot be read ({error}); check the log with "
                f"`coordinator lab audit {path.parent}`"
            ) from None


def _others(mentioned: set[ClientId]) -> str:
    """The agents that the log does mention, for a message."""
    if not mentioned:
        return "no agent has been invited yet"
    return f"it mentions {some(sorted(mentioned), SHOWN_AGENTS)}"
