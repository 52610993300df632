"""One suite for every link and every broker: what needs `embedded`."""

from __future__ import annotations

import contextlib

import pytest

from covey.broker.programs.mosquitto import Mosquitto, find
from covey.broker.programs.options import BrokerOptions
from covey.extras.embedded.program import EmbeddedBroker
from tests.conformance.test_links import topic as topic
from tests.conformance.test_links import works_again_after


@pytest.mark.parametrize(
    "kind", [EmbeddedBroker, pytest.param(Mosquitto, marks=pytest.mark.broker)]
)
async def test_a_link_comes_back_after_a_restart_of_a_real_broker(
    kind: type[EmbeddedBroker] | type[Mosquitto], topic: str
) -> None:
    if kind is Mosquitto and find() is None:
        pytest.skip("mosquitto is not installed")
    async with kind() as first, contextlib.AsyncExitStack() as running:

        async def begin() -> None:
            await running.enter_async_context(kind(BrokerOptions(port=first.url.port)))

        await works_again_after(first.kill, begin, str(first.url), topic)
