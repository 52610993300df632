"""The privacy account of a device: what DP-SGD has spent of its data in all runs, in its state folder.

It is written before a training begins, so a training whose report never arrives counts too, and so does one that is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covey.shared.errors import PublicError
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically

FILE = "privacy.json"
FORMAT = 1

Row = tuple[float, float, int]  # noise multiplier, sampling rate, steps


@dataclass(frozen=True)
class DeviceAccount:
    """The account in one file, and the owner's bound on it."""

    path: Path
    epsilon: float | None = None  # the bound; None: the account is kept, and bounds nothing
    delta: float = 1e-5

    def rows(self) -> list[Row]:
        """What was spent so far; nothing without a file. Raises PublicError for a damaged file."""
        try:
            data = json_text.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError("another format")
            rows = [(float(noise), float(rate), int(steps)) for noise, rate, steps in data["rows"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PublicError(
                f"the privacy account of this device ({FILE} in its state folder) cannot be read: {type(error).__name__}; "
                "restore it from a backup. Without it, what was spent is unknown"
            ) from None
        return rows

    def write(self, rows: list[Row]) -> None:
        """Replace the account. It survives a power cut."""
        write_atomically(self.path, json_text.dumps({"format": FORMAT, "rows": rows}).encode())
