"""Looks at pages in a real browser, on a desk and on a phone, light and dark: screenshots, and faults of layout.

`python -m covey.extras.dashboard.tests.looks RUN --out FOLDER` makes the screenshots of a run's dashboard and report, such as those of the docs.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from covey.extras.dashboard.hub import LiveState
from covey.extras.dashboard.server import serving
from covey.extras.runs.folder_reader import FolderReader
from covey.shared.wire.documents import Control
from tests.browser import Page, browser

SETTLES_S = 0.4  # after its text is there, a page still draws its canvas
DESK = (1280, 900)
PHONE = (390, 844)
LEAST_TEXT_PX = 12
# Words of drawings that are cut off at an edge, that lie on other words, or that are too small, however the drawing is
# scaled. None of them can be read.
FLAWS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map((one) => [one.textContent, one.getBoundingClientRect()]);
    for (const [words, box] of boxes) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`cut off: ${words}`);
    }
    for (const one of svg.querySelectorAll('text')) {
      if (!one.getClientRects().length) continue;
      const size = one.getScreenCTM().a * parseFloat(getComputedStyle(one).fontSize);
      if (size < LEAST - 0.01) found.push(`${size.toFixed(1)} px: ${one.textContent}`);
    }
    boxes.forEach(([words, box], place) => {
      for (const [others, other] of boxes.slice(place + 1)) {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 4) found.push(`one on the other: ${words} / ${others}`);
      }
    });
  }
  for (const plot of document.querySelectorAll('svg')) {
    if (!plot.childElementCount) found.push('an empty drawing');
  }
  return found;
})()""".replace("LEAST", str(LEAST_TEXT_PX))


@dataclass(frozen=True)
class View:
    """A way to look at a page."""

    size: tuple[int, int]  # pixels of the window
    dark: bool

    @property
    def name(self) -> str:
        theme = "dark" if self.dark else "light"
        return f"{theme}-{self.size[0]}"


VIEWS = (View(DESK, False), View(DESK, True), View(PHONE, False), View(PHONE, True))


def views_of(page: Page, address: str, ready: str) -> Iterator[View]:
    """Show a page in each view; `ready` is a JavaScript expression that is true once it is complete."""
    for view in VIEWS:
        width, height = view.size
        page.show(address, width=width, height=height, dark=view.dark)
        page.wait_for(ready)
        time.sleep(SETTLES_S)
        yield view


def flaws(page: Page) -> list[str]:
    """Faults of the layout of the page as it is shown."""
    found: list[str] = page.value(FLAWS)
    width = page.value("document.documentElement.clientWidth")
    content = page.value("document.documentElement.scrollWidth")
    if content > width:
        found.append(f"the page is {content} pixels wide in a window of {width}")
    return found


def whole_page(page: Page, path: Path, *, at_most: int = 20_000) -> None:
    """A screenshot of the page from its top to its end, or to `at_most` pixels."""
    width = page.value("document.documentElement.clientWidth")
    height = page.value("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, at_most), "scale": 1}
    answer = page.call(
        "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
    )
    path.write_bytes(base64.b64decode(answer["data"]))


def _sends_nothing(_: Control) -> str | None:
    return "this is only a picture"


def main() -> None:
    """Make the screenshots of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--height", type=int, default=1180)
    options = parser.parse_args()
    folder: Path = options.run
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser(Path(profile)) as page,
        LiveState(FolderReader(folder)) as hub,
        serving(hub, 0, _sends_nothing) as server,
    ):
        report = (folder / "report.html").resolve().as_uri()
        listed = "document.querySelectorAll('#agents tbody tr').length > 0"
        pages = {
            "dashboard": (server.address, listed),
            "report": (report, "document.readyState === 'complete'"),
        }
        for name, (address, ready) in pages.items():
            for view in views_of(page, address, ready):
                file = options.out / f"{name}-{view.name}.png"
                whole_page(page, file, at_most=options.height)
                print(file, *flaws(page), sep="\n  ")


if __name__ == "__main__":
    main()
