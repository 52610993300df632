"""Where figures were computed, and with which versions, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.shared.sentences import counted

Result = Mapping[str, Any]  # as result.json has it


def device_words(result: Result) -> str:
    """The kinds of devices that agents computed on, and the coordinator's kind of machine."""
    counts = result.get("devices") or {}
    kinds = [f"{kind} ({counted(count, 'agent')})" for kind, count in counts.items()]
    machine = result["versions"].get("machine")
    if machine:
        kinds.append(f"coordinator on {machine}")
    return ", ".join(kinds)


def version_words(result: Result) -> str:
    """The versions that figures were made with."""
    named = [
        f"{name} {version}" for name, version in result["versions"].items() if name != "machine"
    ]
    return ", ".join(named)
