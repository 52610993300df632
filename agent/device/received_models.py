"""What the agents of one process receive of models: each part is decoded once, and each model is written once.

All agents of a simulated cluster receive the same bytes. Every agent still has a model under a name in its own folder:
a second name of one file, where the file system has hard links.
"""

from __future__ import annotations

import itertools
import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

from covey.shared.storage.files import private_folder
from covey.shared.wire.framing import CHECKSUM_BYTES
from covey.shared.wire.messages import Part
from covey.shared.wire.parts import Assembler, FileSink, Sink

MAX_MODEL_BYTES = 8 << 30
MAX_PENDING = 64  # incomplete models
MAX_AGE_S = 3600.0  # of an incomplete model
# payloads that are remembered: the agents receive the same part at about the same time
MAX_PARTS = 8
BROKER = "broker"  # to the assembler, all parts come from one sender
HEAD_BYTES = 1 + CHECKSUM_BYTES  # of a payload: version and checksum
PATTERNS = ("*.model", "*.part")


def model_assembler(new_sink: Callable[[str, Part], Sink], largest_bytes: int) -> Assembler:
    """Puts models together from their parts; larger ones than `largest_bytes` are refused."""
    return Assembler(
        new_sink,
        largest_bytes=min(largest_bytes, MAX_MODEL_BYTES),
        per_sender=MAX_PENDING,
        total_bytes=1 << 50,
        max_age_s=MAX_AGE_S,
    )


def link_or_copy(file: Path, target: Path) -> None:
    """Give a file a second name, or copy it. Raises OSError if that fails."""
    try:
        target.hardlink_to(file)
    except OSError:  # a file system without hard links, or a file with too many names
        shutil.copyfile(file, target)


class ReceivedModels:
    """The models that several agents receive, in a folder of their own. Files of an earlier process are removed.

    Args:
        folder: created if it does not exist; on the file system of the agents' own folders.
        largest_bytes: larger models are refused.
    """

    def __init__(self, folder: Path, largest_bytes: int = MAX_MODEL_BYTES) -> None:
        self._folder = folder
        private_folder(folder)
        for pattern in PATTERNS:
            for path in folder.glob(pattern):
                path.unlink()
        self._numbers = itertools.count()
        self._assembler = model_assembler(self._sink, largest_bytes)
        # agents that wait for a model or have it, by its digest; they alone keep its file alive
        self._users: dict[bytes, set[Path]] = {}
        # the newest parts with their payload, by its head, which has a checksum; oldest first
        self._decoded: OrderedDict[bytes, tuple[bytes, Part]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ReceivedModels {self._folder}: {len(self._users)} models>"

    def close(self) -> None:
        """Remove the folder. The agents keep the models that they have."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def decode(self, payload: bytes) -> Part:
        """The part in a payload. Raises DecodeError if it is damaged."""
        head = payload[:HEAD_BYTES]
        known, part = self._decoded.get(head, (b"", None))
        if part is not None and known == payload:
            return part
        part = Part.from_bytes(payload)
        self._decoded[head] = (payload, part)
        if len(self._decoded) > MAX_PARTS:
            self._decoded.popitem(last=False)
        return part

    def feed(self, user: Path, part: Part, now: float) -> bool:
        """Take a part that the agent with this folder received. True if the model is complete.

        Raises:
            DecodeError: the part cannot be right.
            OSError: the disk is full, for instance.
        """
        self._users.setdefault(part.digest, set()).add(user)
        if self._path(part.digest).exists():
            return True
        sink = self._assembler.feed(BROKER, part, now)
        if sink is None:
            return False
        assert isinstance(sink, FileSink)  # noqa: S101 - that is what the assembler was given
        sink.path.rename(self._path(part.digest))
        return True

    def give(self, digest: bytes, target: Path) -> None:
        """Put a complete model to a place. Raises OSError if that fails."""
        link_or_copy(self._path(digest), target)

    def damaged(self, digest: bytes) -> None:
        """An agent's file of this model is damaged, so ours may be, too. The next part begins it again."""
        self._path(digest).unlink(missing_ok=True)
        self._assembler.forget(BROKER, digest)

    def keep(self, user: Path, digests: Collection[bytes], now: float) -> None:
        """The agent needs these models alone. Remove those that no agent needs, and incomplete ones that are too old."""
        for digest in list(self._users):
            users = self._users[digest]
            if digest in digests:
                continue
            users.discard(user)
            if not users:
                del self._users[digest]
                self.damaged(digest)
        self._assembler.expire(now)

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.model"

    def _sink(self, sender: str, part: Part) -> FileSink:
        return FileSink(self._folder / f"{next(self._numbers)}.part", part.size)
