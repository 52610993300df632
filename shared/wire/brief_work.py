"""Work without what all agents share: the order of an agent names that by its digest. Pure.

The shared part is a content like a model: it lies in parts below `clusters/order-settings/model`, and whoever knows its
digest need not fetch it again. It is the same in most rounds of a run.
"""

from __future__ import annotations

from typing import Any

from covey.shared.errors import DecodeError
from covey.shared.wire.messages import BriefWork, ModelRef, Part, SharedWork, Work, digest
from covey.shared.wire.parts import check


def shared_of(work: Work) -> SharedWork:
    """The part of some work that all agents share."""
    fields: dict[str, Any] = {}
    for name in SharedWork.model_fields:
        fields[name] = getattr(work, name)
    return SharedWork(**fields)


def brief_of(work: Work, shared: ModelRef) -> BriefWork:
    """The rest of the work; `shared` names the part that all agents share."""
    fields: dict[str, Any] = {"shared": shared}
    for name in BriefWork.model_fields:
        if name != "shared":
            fields[name] = getattr(work, name)
    return BriefWork(**fields)


def whole_of(brief: BriefWork, shared: SharedWork) -> Work:
    """The work with both parts. Each of them was checked when it was read."""
    fields: dict[str, Any] = dict(brief)
    del fields["shared"]
    return Work.model_construct(**dict(shared), **fields)


class SharedParts:
    """Puts the parts of the newest shared content together, in memory: it is small, and its bound is that of `BriefWork`.

    Args:
        largest_bytes: of a content.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._digest = b""  # of the content that arrives
        self._parts: dict[int, bytes] = {}  # of that content

    def __repr__(self) -> str:
        return f"<SharedParts: {len(self._parts)} parts of {self._digest.hex()}>"

    def feed(self, part: Part) -> SharedWork | None:
        """Take one part. Returns the content once it is whole. Raises DecodeError if it cannot be right."""
        if part.size > self._largest_bytes:
            raise DecodeError("too large", f"{part.size} bytes, at most {self._largest_bytes}")
        check(part)
        if part.digest != self._digest:
            self._digest = part.digest
            self._parts.clear()
        self._parts[part.index] = part.data
        if len(self._parts) < part.count:
            return None
        in_order = [self._parts[index] for index in sorted(self._parts)]
        self._parts.clear()
        content = b"".join(in_order)
        if digest(content) != part.digest:
            raise DecodeError("wrong digest", "what all orders share is damaged")
        return SharedWork.from_bytes(content, verified=True)
