"""The stages of a round engine."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    GATHERING = "gathering"
    PLANNING = "planning"
    OPEN = "open"
    STREAMING = "buffered"  # of buffered rounds alone
    FOLDING = "folding"
    DONE = "finished"
