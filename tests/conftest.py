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
