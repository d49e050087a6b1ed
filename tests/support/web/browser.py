"""A console in a process of its own, and Chromium pages that report what they must not do."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from tools.screenshots import CHROMIUM, FLAGS

__all__ = ["CHROMIUM", "FLAGS", "ConsolePage", "serve_console"]


@contextmanager
def serve_console(folder: Path, *arguments: str) -> Iterator[str]:
    """Run `holdfast web` and return its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "web", *arguments, "--port=0"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        match = re.search(r"http://\S+", line)
        assert match is not None, line + process.stderr.read()
        yield match[0].rstrip("/")
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        finally:
            process.kill()
            process.stderr.close()


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

    def check(self) -> None:
        """Assert that the page is accessible, and did nothing that it must not do."""
        results = Axe().run(self.page).response["violations"]
        serious = [
            (violation["id"], [node["html"] for node in violation["nodes"]])
            for violation in results
            if violation["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert (self.foreign, self.complaints) == ([], [])

    def close(self) -> None:
        """Close the page."""
        self.context.close()
