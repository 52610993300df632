"""Examines the disk under a broker's folder: is there room, and does the broker save what it retains?"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from covey.broker.doctor import Finding
from covey.broker.limits import MIB
from covey.broker.programs.mosquitto import DATABASE, SAVE_EVERY_S

CHECK = "disk"
SPARE = 64 * MIB  # beyond a second copy of the retained messages, which each save writes
LATE_S = 3 * SAVE_EVERY_S
LOST = "a broker that cannot save loses retained messages, such as models of finished runs, at its next start"


def examine_disk(data: Path) -> Finding:
    """The disk of a broker that runs, and its newest save.

    Args:
        data: the folder with its retained messages, which may not exist yet.
    """
    place = data if data.exists() else data.parent
    free = shutil.disk_usage(place).free
    database = data / DATABASE
    if not database.exists():
        return judged(free, 0, None)
    found = database.stat()
    return judged(free, found.st_size, time.time() - found.st_mtime)


def judged(free: int, saved: int, age_s: float | None) -> Finding:
    """What the figures mean.

    Args:
        free: bytes on the disk.
        saved: bytes of the newest save; 0 if there is none.
        age_s: seconds since then; None if there is none.
    """
    seen = f"{free // MIB} MiB free, {saved // MIB} MiB saved"
    if free < saved + SPARE:
        least = (saved + SPARE) // MIB + 1
        return Finding(CHECK, "missing", seen, f"{LOST}; make room, at least {least} MiB", free)
    if age_s is None:
        return Finding(CHECK, "ok", f"{free // MIB} MiB free, nothing saved yet", value=free)
    if age_s > LATE_S:
        return Finding(
            CHECK,
            "missing",
            f"{seen}, {age_s:.0f} s ago",
            f"the broker should save every {SAVE_EVERY_S} s: {LOST}; see the messages of `broker up`",
            free,
        )
    return Finding(CHECK, "ok", f"{seen}, {age_s:.0f} s ago", value=free)
