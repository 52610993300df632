"""`coordinator init`: a scenario for data of the user's own.

The coordinator reads no data itself: it starts `agent check --propose --json` and combines the descriptions that this prints. A source may also be such a description, which a device has written: then no row leaves the device.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.shared.child import environment, python
from covey.shared.errors import UserError
from covey.shared.proposal.choices import Proposal
from covey.shared.proposal.description import DataDescription, read_description
from covey.shared.proposal.proposal import propose

DESCRIPTION_SUFFIX = ".json"
FAILURE_MARK = "error: "


@dataclass(frozen=True)
class Request:
    """What `coordinator init` was asked for."""

    sources: Sequence[str]  # data of one device each, or its description
    targets: Sequence[str] = ()
    agents: int | None = None
    name: str | None = None
    anomalies: bool = False
    horizon: int | None = None


def init(request: Request) -> Proposal:
    """The proposed scenario.

    Raises:
        UserError: a source cannot be read, or the data of the devices does not go together.
    """
    return propose(
        described(request.sources),
        target=request.targets,
        anomalies=request.anomalies,
        horizon=request.horizon,
        agents=request.agents,
        name=request.name,
    )


def described(sources: Sequence[str]) -> list[DataDescription]:
    """A description of each source, in their order."""
    files = [source for source in sources if _is_description(source)]
    data = [source for source in sources if source not in files]
    found: dict[str, DataDescription] = {}
    for source in files:
        found[source] = read_description(Path(source))
    if data:
        found |= zip(data, _described_by_agent(data), strict=True)
    return [found[source] for source in sources]


def _is_description(source: str) -> bool:
    return source.endswith(DESCRIPTION_SUFFIX) and Path(source).is_file()


def _described_by_agent(data: Sequence[str]) -> list[DataDescription]:
    """One program describes them all. UserError with its message if it fails."""
    first, *others = data
    options = ["--propose", "--json", "--data", first]
    for other in others:
        options += ["--also", other]
    done = subprocess.run(
        python("covey.agent.cli", "check", *options),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise UserError(_failure(done.stderr) or f"{first}: it cannot be described")
    return [DataDescription.model_validate_json(line) for line in done.stdout.splitlines()]


def _failure(printed: str) -> str:
    """The message of a program that failed, without its mark: it is printed again with one."""
    _, mark, message = printed.rpartition(FAILURE_MARK)
    return message.strip() if mark else printed.strip()
