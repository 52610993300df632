"""Work without what all agents share: the order of an agent names that by its digest. Pure.

The shared part is a content like a model: it lies in parts below `clusters/order-settings/model`, and an agent that knows
its digest need not fetch it again. It is the same in most rounds of a run.
"""

from __future__ import annotations

from typing import Any

from covey.shared.errors import DecodeError
from covey.shared.wire.framing import Message
from covey.shared.wire.messages import BriefWork, ModelRef, Part, SharedWork, Work, digest
from covey.shared.wire.parts import check


def shared_of(work: Work) -> SharedWork:
    """The part of some work that all agents share."""
    return SharedWork(**_fields(work, SharedWork))


def brief_of(work: Work, shared: ModelRef) -> BriefWork:
    """The rest of the work; `shared` names the part that all agents share."""
    return BriefWork(shared=shared, **_fields(work, BriefWork))


def _fields(work: Work, part: type[Message]) -> dict[str, Any]:
    """The fields that some work has in common with a part of it."""
    return {name: getattr(work, name) for name in part.model_fields if name != "shared"}


def whole_of(brief: BriefWork, shared: SharedWork) -> Work:
    """The work with both parts. Each of them was checked when it was read."""
    own = dict(brief)
    del own["shared"]
    return Work.model_construct(**own, **dict(shared))


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
        largest = self._largest_bytes
        if part.size > largest:
            raise DecodeError("too large", f"{part.size} bytes, at most {largest}")
        check(part)
        parts = self._parts
        if part.digest != self._digest:
            self._digest = part.digest
            parts.clear()
        parts[part.index] = part.data
        if len(parts) < part.count:
            return None
        in_order = sorted(parts)
        content = b"".join(parts[index] for index in in_order)
        parts.clear()
        if digest(content) != part.digest:
            why = "what all orders share is damaged"
            raise DecodeError("wrong digest", why)
        return SharedWork.from_bytes(content, verified=True)
