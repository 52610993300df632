"""The models on an agent's disk: one file per content, named by its digest, and the parts of incomplete ones.

What the agents of one process receive of models: each part is decoded once, and each model is written once.

All agents of a simulated cluster receive the same bytes. Every agent still has a model under a name in its own folder:
a second name of one file, where the file system has hard links.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path

from covey.shared.storage.files import SUFFIX, atomic_replace, discard, make_folder, private_folder
from covey.shared.wire.framing import CHECKSUM_BYTES
from covey.shared.wire.messages import Part, digest_of_file
from covey.shared.wire.parts import Assembler, FileSink, MemorySink, Sink, taken

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
        discard(self._path(digest))
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


class ModelStore:
    """The models in a folder. Parts that an earlier process left are removed, complete models are kept.

    Args:
        folder: created if it does not exist.
        largest_bytes: larger models are refused.
        durable: whether complete models survive a power cut.
        received: what other agents of this process receive, too; None for an agent by itself.
        bases: keeps bases for later runs; None: nothing is kept.

    Attributes:
        damaged: models whose file did not have the content that its name promises, in sentences for a person. Their
            files were removed when the store was opened; the session fetches them again if it needs them.
    """

    def __init__(
        self,
        folder: Path,
        largest_bytes: int = MAX_MODEL_BYTES,
        *,
        durable: bool = True,
        received: ReceivedModels | None = None,
        bases: Bases | None = None,
    ) -> None:
        self._bases = bases
        self._folder = folder
        self._received = received
        self._durable = durable
        self.damaged: list[str] = []
        make_folder(folder, durable=durable)
        for path in folder.glob("*.part"):
            path.unlink()
        self._complete: set[bytes] = set()
        for path in sorted(folder.glob("*.model")):
            if _matches_its_name(path):
                self._complete.add(bytes.fromhex(path.stem))
            else:
                path.unlink()
                self.damaged.append(
                    f"{path}: the model is damaged; it is fetched again if it is still needed"
                )
        self._numbers = itertools.count()
        self._parts = model_assembler(self._sink, largest_bytes)

    def __repr__(self) -> str:
        return f"<ModelStore {self._folder}: {len(self.digests)} models>"

    @property
    def digests(self) -> list[bytes]:
        """The digests of all complete models."""
        return sorted(self._complete)

    def path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.model"

    def decode(self, payload: bytes) -> Part:
        """The part in a payload. Raises DecodeError if it is damaged."""
        if self._received is not None:
            return self._received.decode(payload)
        return Part.from_bytes(payload)

    def feed(self, part: Part, now: float) -> bool | None:
        """Take one part of a model.

        Returns:
            True if the model is complete now, False if not, None if it was complete before.

        Raises:
            DecodeError: the part cannot be right.
            OSError: the disk is full, for instance.
        """
        if part.digest in self._complete:
            return None
        if self._received is not None:
            return self._take(self._received, part, now)
        sink = self._parts.feed(BROKER, part, now)
        if sink is None:
            return False
        try:
            with atomic_replace(self.path(part.digest), durable=self._durable) as beside:
                if isinstance(sink, FileSink):
                    sink.path.replace(beside)
                else:
                    beside.write_bytes(taken(sink))
        except OSError:  # a full disk: let the parts come again
            self._parts.forget(BROKER, part.digest)
            raise
        self._complete.add(part.digest)
        return True

    def has_base(self, digest: bytes) -> bool:
        """Whether a base is here that was not, because an earlier run or the owner has left it."""
        if self._bases is None or digest in self._complete:
            return False
        if is_here := self._bases.give(digest, self.path(digest)):
            self._complete.add(digest)
        return is_here

    def keep_base(self, digest: bytes) -> None:
        """Keep a complete base for later runs."""
        if self._bases is not None:
            self._bases.add(digest, self.path(digest))

    def _take(self, received: ReceivedModels, part: Part, now: float) -> bool:
        """Take one part of a model that other agents receive, too. True if the model is complete now."""
        if not received.feed(self._folder, part, now):
            return False
        with atomic_replace(self.path(part.digest), durable=self._durable) as beside:
            received.give(part.digest, beside)
        self._complete.add(part.digest)
        return True

    def remove(self, digest: bytes) -> str:
        """Remove a model whose file is damaged. Returns a sentence about it."""
        self._forget(digest)
        if self._received is not None:
            self._received.damaged(digest)
        return f"{self.path(digest)}: the model is damaged; it is fetched again"

    def keep(self, digests: Collection[bytes], now: float) -> None:
        """Remove all other complete models, and incomplete ones that are too old."""
        for digest in self._complete.difference(digests):
            self._forget(digest)  # a later order may name it again
        self._parts.expire(now)
        if self._received is not None:
            self._received.keep(self._folder, digests, now)

    def _forget(self, digest: bytes) -> None:
        self._complete.discard(digest)
        discard(self.path(digest))
        self._parts.forget(BROKER, digest)

    def _sink(self, sender: str, part: Part) -> Sink:
        if part.count == 1:
            return MemorySink()
        return FileSink(self._folder / f"{next(self._numbers)}.part", part.size)


class Bases:
    """Bases on a device's disk, by their digest: those that runs have used last, as far as there is room.

    The owner may put a base there, too, under its digest and `.safetensors`.

    Args:
        folder: agents of one machine can share it.
        room_bytes: of all bases together; None: no bound.
    """

    def __init__(self, folder: Path, room_bytes: int | None) -> None:
        self._folder = folder
        self._room_bytes = room_bytes

    def __repr__(self) -> str:
        return f"<Bases {self._folder}>"

    def give(self, digest: bytes, target: Path) -> bool:
        """Put a base to a place, as a second name of one file where that is possible. False if it is not here, or damaged."""
        path = self._path(digest)
        if not path.exists() or not _matches_its_name(path):
            discard(path)
            return False
        path.touch()
        link_or_copy(path, target)
        return True

    def add(self, digest: bytes, content: Path) -> None:
        """Keep a base, and remove those that were used longest ago as far as they need the room."""
        path = self._path(digest)
        make_folder(self._folder, durable=False)
        if not path.exists():
            with atomic_replace(path, durable=False, mark=str(os.getpid())) as beside:
                link_or_copy(content, beside)
        path.touch()
        room = math.inf if self._room_bytes is None else self._room_bytes
        for other in sorted(self._folder.glob(f"*{SUFFIX}"), key=_last_use, reverse=True):
            room -= other.stat().st_size
            if room < 0:
                discard(other)

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}{SUFFIX}"


def _last_use(path: Path) -> float:
    return path.stat().st_mtime


def _matches_its_name(path: Path) -> bool:
    return digest_of_file(path).hex() == path.stem
