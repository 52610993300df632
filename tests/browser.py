"""A real browser for tests: Chromium without a window, driven through its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
STARTS_IN_S = 30.0
LEFT_MEANWHILE = "Inspected target navigated or closed"
COMPLAINTS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class PageLeftError(Exception):
    """The page was left for another while it answered."""


class Page:
    """One page of the browser. `complaints` collects errors, warnings and what scripts log, `requests` all addresses that
    pages have asked for."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.complaints: list[dict[str, Any]] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result. Raise `PageLeftError` if the page was left for
        another meanwhile."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(timeout=STARTS_IN_S))
            if answer.get("method") in COMPLAINTS:
                self.complaints.append(answer)
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == number:
                if answer.get("error", {}).get("message") == LEFT_MEANWHILE:
                    raise PageLeftError
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def show(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page, in a window of this size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        is_phone = width < 600
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def wait_for(self, expression: str, within_s: float = 60.0) -> float:
        """Wait until an expression is true, on this page or on one that a click leads to; the seconds that it took."""
        began = time.monotonic()
        while not self._is_true(expression):
            waited = time.monotonic() - began
            assert waited < within_s, (
                f"not within {within_s} s: {expression}\n{self.value('document.body.innerText')}"
            )
            time.sleep(0.02)
        return time.monotonic() - began

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.value(expression))
        except PageLeftError:
            return False

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def point_at(self, selector: str, *, across: float) -> None:
        """Move the pointer over an element; `across` is the share of its width."""
        self.value(f"document.querySelector({json.dumps(selector)}).scrollIntoView()")
        box = self.value(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        left, top, width, height = box
        x, y = left + across * width, top + height / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        answer = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with an empty profile in this folder, for as long as the block lasts."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = _debugger(profile)
        with connect(address, max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(STARTS_IN_S)


def _debugger(profile: Path) -> str:
    """The address of the browser's one page."""
    file = profile / "DevToolsActivePort"
    until = time.monotonic() + STARTS_IN_S
    while not (file.exists() and file.read_text().count("\n")):
        assert time.monotonic() < until, "the browser did not start"
        time.sleep(0.05)
    port = file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
        targets = json.load(answer)
    [page] = [target for target in targets if target["type"] == "page"]
    return str(page["webSocketDebuggerUrl"])
