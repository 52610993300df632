"""Read what a broker retains: it sends it at once after a subscription, and nothing marks its end but their silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from covey.shared.mqtt.link import Down, Link, Received, Up

QUIET_S = 1.0  # without a stored message: the broker has sent all that it retains


async def why_not_up(link: Link, within_s: float) -> str:
    """Wait for the first connection of a link. Returns why it failed, or ""."""
    try:
        async with asyncio.timeout(within_s):
            async for item in link.incoming():
                if isinstance(item, Up):
                    return ""
                if isinstance(item, Down):
                    return item.why
    except TimeoutError:
        pass
    return "no answer"


async def until_quiet(
    link: Link,
    within_s: float,
    *,
    quiet_s: float | None = None,
    is_awaited: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Received]:
    """The messages that arrive, until none that the broker had stored came for some time.

    Others may come all the while: a fleet at work is never silent.

    Args:
        link: that is subscribed.
        within_s: the longest time in all.
        quiet_s: how long the silence lasts; None: `QUIET_S`.
        is_awaited: whether something is still expected, so that silence ends nothing.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    incoming = link.incoming()
    silence = QUIET_S if quiet_s is None else quiet_s
    quiet_since = loop.time()
    while True:
        until = end if is_awaited() else min(end, quiet_since + silence)
        try:
            async with asyncio.timeout_at(until):
                item = await anext(incoming)
        except (TimeoutError, StopAsyncIteration):
            return
        if isinstance(item, Received):
            if item.retained:
                quiet_since = loop.time()
            yield item
