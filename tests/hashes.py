"""A record of everything that is hashed: `blake2b` is replaced by a hash that remembers its input."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest


class Hashes:
    """The input of every hash since `watch`.

    Attributes:
        inputs: one for each hash, in their order.
    """

    def __init__(self) -> None:
        self.inputs: list[bytearray] = []
        self._real = hashlib.blake2b

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch the hashes of this process until `monkeypatch` is undone."""
        monkeypatch.setattr(hashlib, "blake2b", self._new)

    def of(self, content: bytes) -> int:
        """How many hashes read all of this content."""
        return sum(content in found for found in self.inputs)

    @property
    def bytes(self) -> int:
        """Bytes that were hashed."""
        return sum(len(found) for found in self.inputs)

    def _new(self, data: Any = b"", **options: Any) -> Any:
        found = bytearray(data)
        self.inputs.append(found)
        real = self._real(data, **options)

        class Watched:
            def update(self, more: Any) -> None:
                found.extend(more)
                real.update(more)

            digest = staticmethod(real.digest)
            hexdigest = staticmethod(real.hexdigest)

        return Watched()
