"""Brokers that many tests share: each is started once, for the first test that asks for it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import pytest

from tests import brokers


def pytest_configure() -> None:
    """A suite that a shell started in the background ignores Ctrl-C, and so would all programs that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start real programs come first: they take longest, and no worker should be alone with one in the end."""
    slow = {item.path for item in items if item.get_closest_marker("processes")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """broker_url("mosquitto") starts it if need be and gives its url (names: `tests.brokers.NAMES`)."""
    urls: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def url(name: str) -> str:
            if name not in urls:
                urls[name] = stack.enter_context(brokers.start(name, tmp_path_factory.mktemp(name)))
            return urls[name]

        yield url
