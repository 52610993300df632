"""Bytes on the wire: content is cut into parts, and each part travels in an MQTT packet at QoS 1.

Sizes are computed from empty content and from the lengths of its vectors: nothing is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from covey.shared.scenario.wire import Wire
from covey.shared.strategies.base import Report, Setup
from covey.shared.wire.codec import Codec
from covey.shared.wire.messages import DIGEST_BYTES, Encoded, ModelContent, Part, ReportContent
from covey.shared.wire.packet_size import publish_bytes
from covey.shared.wire.parts import part_count, part_length
from covey.shared.wire.topics import Topics

AGENT = "agent-0000"  # as long as most ids: topics and reports carry it
RUN = "r" * 16
STEP = 1000
NO_DIGEST = bytes(DIGEST_BYTES)


class Prices:
    """The bytes of models and reports under the wire section of a scenario."""

    def __init__(self, wire: Wire, federation: str, setup: Setup) -> None:
        self._wire = wire
        self._topics = Topics(federation)
        self._setup = setup
        self._down = Codec(wire.down)  # of models

    def __repr__(self) -> str:
        return f"Prices({self._wire!r})"

    def model(self, key: str, length: int) -> int:
        """Bytes of one model, or of a part of one, with `length` values, on its way to one agent."""
        empty = Encoded(codec=self._down.name, length=length, data=b"")
        envelope = len(ModelContent(layout=self._setup.whole.digest, vector=empty).to_bytes())
        payload = _growth(self._down.payload_bytes(length, based=False))
        return self._packets(self._topics.model(key), envelope + payload)

    def report(self, report: Report, wire: Wire | None) -> int:
        """Bytes of one report on its way to the coordinator; `wire` is None for one in float32."""
        codec = Codec()
        if wire is not None:
            codec = Codec(wire.codec, wire.delta, keep=wire.keep)
        vectors = {}
        payload = 0
        for name, vector in report.vectors.items():
            based = codec.delta and name in report.bases
            vectors[name] = Encoded(
                # the sparse codec encodes deltas only
                codec="float32" if codec.name == "topk" and not based else codec.name,
                length=vector.size,
                base=NO_DIGEST if based else b"",
                data=b"",
            )
            payload += _growth(codec.payload_bytes(vector.size, based))
        content = ReportContent(
            run=RUN,
            step=STEP,
            work=NO_DIGEST,
            client=AGENT,
            examples=report.examples,
            steps=report.steps,
            loss=report.loss,
            numbers=dict(report.numbers),
            seconds=1.0,
            vectors=vectors,
        )
        envelope = len(content.to_bytes())
        return self._packets(f"{self._topics.base}/agents/{AGENT}/report", envelope + payload)

    def _packets(self, topic: str, size: int) -> int:
        return _packets(len(topic), size, self._wire.part_bytes)


@cache
def _packets(topic_bytes: int, size: int, part_bytes: int) -> int:
    """Bytes of all packets of one content.

    The largest index stands for all parts, which is at most 4 bytes too many for each.
    """
    count = part_count(size, part_bytes)
    empty = Part(digest=NO_DIGEST, index=count - 1, count=count, size=size, about=STEP, data=b"")
    envelope = len(empty.to_bytes())
    longest = part_length(size, count)
    total = 0
    for index in range(count):
        digits = len(str(index))  # the topic ends with a slash and the index
        payload = envelope + _growth([min(longest, size - index * longest)])
        total += publish_bytes(topic_bytes + 1 + digits, payload)
    return total


def _growth(sizes: Iterable[int]) -> int:
    """Bytes that msgpack binaries of these sizes take more than empty ones: content, and longer headers."""
    total = 0
    for size in sizes:
        total += size
        if size >= 1 << 16:
            total += 3
        elif size >= 1 << 8:
            total += 1
    return total
