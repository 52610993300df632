"""`coordinator init`: a scenario for data of the user's own.

The coordinator reads no data itself: for each source it starts `agent check --propose --json`, whose description it combines
with the others. A source may also be such a description, which a device has written: then no row leaves the device.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from covey.shared.errors import UserError
from covey.shared.proposal.choices import Proposal
from covey.shared.proposal.description import DataDescription, read_description
from covey.shared.proposal.proposal import propose
from covey.shared.python_process import environment, python

DESCRIPTION_SUFFIX = ".json"
FAILURE_MARK = "error: "


@dataclass(frozen=True)
class Request:
    """What `coordinator init` was asked for."""

    sources: Sequence[str]  # data of one device each, or its description
    target: str | None = None
    agents: int | None = None
    name: str | None = None


def init(request: Request) -> Proposal:
    """The proposed scenario.

    Raises:
        UserError: a source cannot be read, or the data of the devices does not go together.
    """
    descriptions = described(request.sources)
    return propose(
        descriptions,
        target=request.target,
        agents=request.agents,
        name=request.name,
    )


def described(sources: Sequence[str]) -> list[DataDescription]:
    """A description of each source, in their order."""
    at_once = min(len(sources), os.cpu_count() or 1)
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(_described, sources))


def _described(source: str) -> DataDescription:
    if source.endswith(DESCRIPTION_SUFFIX) and Path(source).is_file():
        return read_description(Path(source))
    command = python("covey.agent.cli", "check", "--propose", "--json", "--data", source)
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise UserError(_failure(done.stderr) or f"{source}: it cannot be described")
    try:
        return DataDescription.model_validate_json(done.stdout)
    except ValidationError:
        raise UserError(
            f"{source}: the installed agent prints no description; install the same version of Covey"
        ) from None


def _failure(printed: str) -> str:
    """The message of a program that failed, without its mark: it is printed again with one."""
    _, mark, message = printed.rpartition(FAILURE_MARK)
    return message.strip() if mark else printed.strip()
