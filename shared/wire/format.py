"""The number of what messages and files mean: one for what travels and what lies on a disk.

Most of what changes changes both: a spool holds reports, an outbox a report that waits, a checkpoint the orders of a step.
So there is one number. It grows when a message or a file gets another meaning; fields that only inform may come and go. A
program works with no other number than its own, on the link and in a folder: it names the older one, and changes
nothing. What has no number was made before there were any, and counts as `NONE`.
An idle agent imports this module, so it needs neither numpy nor torch.
"""

from __future__ import annotations

from covey.shared.programs.version import version

FORMAT = 1
NONE = 0


def speaks_other(who: str, number: int, its_version: str, here: str) -> str:
    """Why a peer of another number takes no part.

    Args:
        who: the peer, for a person.
        number: its number.
        its_version: of its program; empty if unknown.
        here: this program, for a person.
    """
    named = f" (Covey {its_version})" if its_version else ""
    older = who if number < FORMAT else here
    return f"{who} speaks format {number}{named}, {here} format {FORMAT} (Covey {version()}): update {older}"


def begun_with_other(what: str, number: int, its_version: str) -> str:
    """That something on a disk has another number, as the beginning of a message.

    Args:
        what: it is, for a person, with its path.
        number: that it has.
        its_version: of the program that wrote it; empty if unknown.
    """
    wrote = f"Covey {its_version}" if its_version else "an earlier version of Covey"
    return (
        f"{what} was begun with {wrote} (format {number}); this is Covey {version()} (format {FORMAT}). "
        "Nothing was changed"
    )
