"""The command of the device's owner that runs after a new model was taken over (`agent start --on-model`).

It comes from the command line alone, never from the network. It runs without a shell, and nothing that it does can hurt
the agent: its failure is reported and counted, and after a time limit it is ended together with its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from covey.agent.kept.versions import Version
from covey.shared.errors import UserError

LIMIT_S = 60.0
# the agent's options, a broker's password among them: the command gets none of them
OWN_VARIABLES = "COVEY_"

OnFailure = Callable[[str], None]


def parse_hook(command: str) -> tuple[str, ...]:
    """The words of a command. Raises UserError if there are none, or a quotation has no end."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"--on-model {command}: {error}; close the quotation") from None
    if not words:
        raise UserError("--on-model: expected a command, such as 'systemctl restart predictor'")
    return words


class ModelHook:
    """Runs the command, one at a time. If models arrive faster than it ends, those in between are left out.

    Args:
        words: the command and its arguments; the path of the new model follows as the last one.
        limit_s: how long it may run.
        failed: called with the reason of each failure.
    """

    def __init__(self, words: Sequence[str], limit_s: float, failed: OnFailure) -> None:
        self._words = tuple(words)
        self._limit_s = limit_s
        self._failed = failed
        self._next: tuple[Path, Version] | None = None  # what to run for once the present run ends
        self._running: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ModelHook {shlex.join(self._words)}>"

    def start(self, path: Path, version: Version) -> None:
        """Run the command for this model, now or when the present run has ended."""
        self._next = (path, version)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all())

    async def close(self) -> None:
        """End the command if it runs."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run_all(self) -> None:
        while self._next is not None:
            path, version = self._next
            self._next = None
            try:
                why = await self._run(path, version)
            except Exception as error:  # whatever happens to the command, the agent lives on
                why = f"{type(error).__name__}: {error}"
            if why:
                self._failed(f"{self._words[0]}: {why}")

    async def _run(self, path: Path, version: Version) -> str:
        """Run the command once. Returns why it failed; empty if it did not."""
        process = await asyncio.create_subprocess_exec(
            *self._words,
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,  # the agent's own stdout may be read by a program
            env=_environment(path, version),
            start_new_session=True,  # so that its children can be ended with it
        )
        try:
            async with asyncio.timeout(self._limit_s):
                code = await process.wait()
        except TimeoutError:
            return f"it was ended after {self._limit_s:g} s"
        finally:
            await _end(process)
        return f"it ended with exit code {code}" if code else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and its children."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _environment(path: Path, version: Version) -> dict[str, str]:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)
    }
    variables["COVEY_MODEL"] = str(path)
    variables["COVEY_MODEL_RUN"] = version.run
    variables["COVEY_MODEL_ROUND"] = str(version.round)
    variables["COVEY_MODEL_CLUSTER"] = "" if version.cluster is None else str(version.cluster)
    return variables
