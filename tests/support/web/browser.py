"""A console in a thread, and Chromium pages that report what they must not do."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tools.example_console import serve_in_thread
from tools.screenshots import CHROMIUM, FLAGS

from holdfast.web import web_app
from support.waiting import TEST_TIMEOUT_SECONDS

WIDTHS = (1280, 700, 390, 320)
# Wider than any usual font, and the same on every machine: each letter of a font of fixed width
# takes 0.6 em, and a page must work with the spacing, which is that of WCAG 1.4.12.
WIDE_FONT = """* {
  font-family: monospace !important;
  letter-spacing: .12em !important;
  word-spacing: .16em !important;
}"""
USE_STYLES = """css => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  document.adoptedStyleSheets = [sheet];
}"""
HAS_OVERFLOW = """() => [...document.querySelectorAll(":root, .table-box, .box, dt")]
  .some(element => element.scrollWidth > element.clientWidth)"""

__all__ = ["CHROMIUM", "FLAGS", "ConsolePage", "serve_console"]


@contextmanager
def serve_console(folder: Path, *queues: str, **options: Any) -> Iterator[str]:
    """Serve a console of queues and stores in a folder, and return its address."""
    for store in ("jobs", "chat"):
        if store in options:
            options[store] = f"{folder}/{options[store]}"
    urls = [queue.replace("FOLDER", str(folder)) for queue in queues]
    with ExitStack() as resources:
        yield serve_in_thread(web_app(urls, **options), resources)


class ConsolePage:
    """A page that records each request to another host and each violation of the CSP."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.address = address
        self.context = browser.new_context(base_url=address, **options)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.foreign: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", self._note_request)
        self.page.on("console", lambda entry: self._note(entry.type, entry.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self._note("error", "a dialog was opened"))

    def _note_request(self, request: object) -> None:
        url = getattr(request, "url", "")
        if not url.startswith(f"{self.address}/"):
            self.foreign.append(url)

    def _note(self, kind: str, text: str) -> None:
        expected = "Failed to load resource"  # of a page that answers with an error
        if kind in ("error", "warning") and expected not in text:
            self.complaints.append(text)

    def open(self, path: str) -> Page:
        """Open a page of the console."""
        self.page.goto(path)
        return self.page

    def reload_until(self, text: str) -> None:
        """Load the page again until it contains a text, as a person without JavaScript does."""
        give_up_at = time.monotonic() + TEST_TIMEOUT_SECONDS
        while text not in self.page.content():
            assert time.monotonic() < give_up_at, f"the page does not show {text!r}"
            self.page.reload()

    def check(self) -> None:
        """Assert that the page is accessible, and did nothing that it must not do."""
        axe = Axe()
        found = axe.run(self.page).response["violations"]
        self.use_scheme("dark")
        found += axe.run(self.page, options={"runOnly": "color-contrast"}).response[
            "violations"
        ]
        self.use_scheme("light")
        serious = [
            (violation["id"], [node["html"] for node in violation["nodes"]])
            for violation in found
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert (self.foreign, self.complaints) == ([], [])
        assert self.find_overflow() == [], f"{self.page.url} scrolls sideways"

    def use_scheme(self, scheme: Literal["light", "dark"]) -> None:
        """Change to the light or the dark colours, without a transition."""
        self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def find_overflow(self) -> list[int]:
        """Return the widths of a window in which the page scrolls sideways with a wide font."""
        self.page.evaluate(USE_STYLES, WIDE_FONT)
        overflowing = []
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 800})
            if self.page.evaluate(HAS_OVERFLOW):
                overflowing.append(width)
        self.page.set_viewport_size({"width": WIDTHS[0], "height": 800})
        self.page.evaluate(USE_STYLES, "")
        return overflowing

    def close(self) -> None:
        """Close the page."""
        self.context.close()
