"""The console in a real browser: every view and action, live updates, and hostile text.

What a form or a page alone shows is tested without a browser, in tests/unit/web.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tools.example_console import serve_in_thread
from tools.screenshots import CHROMIUM, FLAGS

from holdfast import AnyMessage, QueueManager, open_queue
from holdfast.chat.pages import make_reference
from holdfast.web import web_app
from support.waiting import WAIT_TIMEOUT_SECONDS
from support.web.conversations import (
    ANSWERED,
    NUMBER,
    PARKED_ID,
    QUESTION,
    fill_chat,
    make_environment,
)
from support.web.jobs import fill_jobs

QUEUE, MISSING = "sqlite:FOLDER/work.db/enrich", "acme/missing"
EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script>\u202e"
HANDLER = """
import time
def hold(message, ctx):
    time.sleep(600)
"""
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
        give_up_at = time.monotonic() + WAIT_TIMEOUT_SECONDS
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[QueueManager[AnyMessage]]:
    with open_queue(f"sqlite:{tmp_path}/work.db/enrich") as queue:
        yield queue


def fail(queue: QueueManager[AnyMessage], count: int, reason: str = "no answer") -> None:
    queue.push_many(AnyMessage(id=f"{reason}-{n}", domain="a.example") for n in range(count))
    while messages := queue.poll(100):
        for message in messages:
            queue.dead_letter(message, f"{reason} from host-{message.id}", detail="Traceback")


@pytest.fixture
def console(
    browser: Browser, queue: QueueManager[AnyMessage], tmp_path: Path
) -> Iterator[ConsolePage]:
    with serve_console(tmp_path, QUEUE, MISSING, allow_actions=True) as address:
        page = ConsolePage(browser, address)
        yield page
        page.close()


SLUG = "/queues/work-db-enrich"


VIEWS = {
    "queues": [
        "/",
        SLUG,
        f"{SLUG}/messages?state=pending",
        f"{SLUG}/messages?state=completed",
        f"{SLUG}/message?id=held&body=1",
        f"{SLUG}/dead",
        f"{SLUG}/dead?text=nothing-has-this",
        "/queues/acme-missing",
        "/queues/acme-missing/dead",
    ],
    "products": [
        "/queues/unknown",
        "/jobs",
        "/jobs/job?id=job-1",
        "/conversations",
        f"/conversations/conversation?ref={make_reference(ANSWERED)}&texts=1",
        "/conversations/parked",
        f"/conversations/batch?id={PARKED_ID}",
        f"/conversations/batch?id={PARKED_ID}&texts=1",
    ],
}


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_every_view_is_accessible_and_loads_nothing_from_elsewhere(
    browser: Browser, queue: QueueManager[AnyMessage], tmp_path: Path, views: list[str]
) -> None:
    fail(queue, 3, EVIL)
    queue.push_many([AnyMessage(id="held"), AnyMessage(id="waiting")])
    queue.poll()
    fill_jobs(tmp_path / "jobs.db")
    fill_chat(tmp_path).close()
    options = {"jobs": "jobs.db", "chat": "chat.db", "allow_actions": True}
    with serve_console(tmp_path, QUEUE, MISSING, **options) as address:
        page = ConsolePage(browser, address)
        for view in views:
            page.open(view)
            page.check()
        page.close()


def test_the_queues_are_shown_with_their_state(
    console: ConsolePage, queue: QueueManager[AnyMessage]
) -> None:
    queue.push(AnyMessage(id="a"))
    page = console.open("/")
    row = page.locator("#queue-work-db-enrich")
    expect(row).to_contain_text("no worker is polling")
    expect(row.locator('[data-label="Ready"]')).to_have_text(re.compile("1"))
    expect(page.locator("#queue-acme-missing")).to_contain_text("there is no queue at")
    queue.poll()
    expect(row).to_contain_text("working", timeout=10_000)
    console.check()


@pytest.mark.nightly
def test_a_killed_worker_is_seen_without_reloading(
    console: ConsolePage, queue: QueueManager[AnyMessage], tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(HANDLER)
    page = console.open(SLUG)
    expect(page.locator("#leases + *")).to_contain_text("No message is leased")
    page.evaluate("document.body.dataset.untouched = 'yes'")
    queue.push(AnyMessage(id="long"))
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "work", "sqlite:work.db/enrich", "tasks:hold"],
        env={**os.environ, "HOLDFAST_LEASE_SECONDS": "4"},
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        row = page.locator("tr[id^=lease-]")
        expect(row).to_contain_text("long", timeout=20_000)
        link = row.get_by_role("link", name="long")
        link.focus()
        meter = row.locator("[data-deadline]")
        deadline = meter.get_attribute("data-deadline") or ""
        # The lease is renewed, and the row is changed in place.
        expect(meter).not_to_have_attribute("data-deadline", deadline, timeout=20_000)
        expect(link).to_be_focused()
        expect(page.locator("tr[id^=worker-]")).to_contain_text(str(worker.pid))
    finally:
        worker.kill()
        worker.wait()
    expect(row).to_contain_text("waits for a worker", timeout=20_000)
    expect(page.locator("tr[id^=worker-]")).to_contain_text("left 1 behind")
    assert page.evaluate("document.body.dataset.untouched") == "yes"
    console.check()


@pytest.mark.nightly
def test_dropping_asks_first_and_only_what_matches_is_dropped(
    console: ConsolePage, queue: QueueManager[AnyMessage]
) -> None:
    fail(queue, 3)
    fail(queue, 4, "bad gateway")
    page = console.open(f"{SLUG}/dead")
    page.get_by_role("link", name="bad gateway from").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_role("button", name="Drop all that match").click()
    expect(
        page.get_by_role("heading", name="Drop all dead letters that match?")
    ).to_be_visible()
    assert queue.stats().failed == 7
    console.check()
    page.get_by_role("button", name="Drop permanently").click()
    expect(page.get_by_text("4 dead letters dropped.")).to_be_visible(timeout=10_000)
    assert queue.stats().failed == 3


@pytest.mark.nightly
def test_new_dead_letters_do_not_move_the_list(
    console: ConsolePage, queue: QueueManager[AnyMessage]
) -> None:
    fail(queue, 2)
    page = console.open(f"{SLUG}/dead")
    expect(page.locator("#stream")).to_have_text("Live", timeout=10_000)
    fail(queue, 10, "later")
    expect(page.get_by_text("10 new: show")).to_be_visible(timeout=10_000)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_text("10 new: show").click()
    expect(page.locator("tbody tr")).to_have_count(12)


def test_every_action_works_without_javascript(
    browser: Browser, queue: QueueManager[AnyMessage], tmp_path: Path
) -> None:
    fail(queue, 4)
    with serve_console(tmp_path, QUEUE, allow_actions=True) as address:
        console = ConsolePage(browser, address, java_script_enabled=False)
        page = console.open(f"{SLUG}/dead")
        page.get_by_label("Choose no answer-0", exact=True).check()
        page.get_by_role("button", name="Redrive chosen").click()
        console.reload_until("1 dead letter redriven.")
        console.open(f"{SLUG}/message?id=no answer-1")
        page.get_by_role("link", name="Show the body").click()
        expect(page.locator("pre").last).to_contain_text("a.example")
        page.get_by_role("button", name="Drop…").click()
        page.get_by_role("button", name="Drop permanently").click()
        console.reload_until("1 dead letter dropped.")
        console.open(f"{SLUG}/dead")
        page.get_by_role("button", name="Redrive all").click()
        console.reload_until("2 dead letters redriven.")
        assert (queue.stats().ready, queue.stats().failed) == (3, 0)
        console.close()


@pytest.mark.nightly
def test_a_message_is_shown_with_its_history_and_a_hostile_body_does_nothing(
    console: ConsolePage, queue: QueueManager[AnyMessage]
) -> None:
    queue.push(AnyMessage(id=EVIL, note=EVIL))
    [message] = queue.poll()
    queue.save_checkpoint(message, {"page": EVIL})
    queue.nack(message, delay_seconds=0, reason=f"not today {EVIL}", detail=f"Traceback {EVIL}")
    [message] = queue.poll()
    queue.dead_letter(message, EVIL)
    page = console.open(f"{SLUG}/dead")
    page.locator("tbody th a").click()
    expect(page.locator(".timeline li")).to_have_count(2)
    page.get_by_text("Traceback or stack").click()
    page.get_by_role("link", name="Show the body").click()
    expect(page.locator("pre").last).to_contain_text("<script>alert(1)</script>")
    expect(page.locator("#stream")).to_have_text("Live", timeout=10_000)
    assert page.locator("img").count() == 0
    console.check()


@pytest.mark.nightly
def test_a_person_decides_about_a_parked_batch(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in make_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    with (
        fill_chat(tmp_path) as chat,
        serve_console(tmp_path, chat="chat.db", allow_actions=True) as address,
    ):
        console = ConsolePage(browser, address, java_script_enabled=False)
        page = console.open("/conversations/parked")
        page.get_by_role("link", name="unclear").click()
        expect(page.locator("main")).to_contain_text("unknown whether the customer got it")
        expect(page.locator("main")).not_to_contain_text(QUESTION)
        page.get_by_role("link", name="Show the number and the texts").click()
        expect(page.locator("main")).to_contain_text(NUMBER)
        expect(page.locator(".said").first).to_contain_text(QUESTION)
        page.get_by_role("button", name="Drop…").click()
        page.get_by_role("link", name="Keep it").click()
        assert len(list(chat.store.parked())) == 1
        page.get_by_role("button", name="Record as sent").click()
        expect(page.get_by_role("status").last).to_contain_text("recorded as sent")
        expect(page.locator("main")).to_contain_text("Nothing is parked")
        assert len(chat.store.history(ANSWERED)) == 4
        console.close()


@pytest.mark.nightly
def test_a_browser_logs_in_with_the_token(
    browser: Browser, queue: QueueManager[AnyMessage], tmp_path: Path
) -> None:
    with serve_console(tmp_path, QUEUE, token="a-token-of-twenty-chars") as address:
        console = ConsolePage(browser, address)
        page = console.open(SLUG)
        expect(page).to_have_url(f"{address}/login")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the token")
        console.check()
        page.get_by_label("Token").fill("a-token-of-twenty-chars")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#queue-work-db-enrich")).to_be_visible()
        [cookie] = console.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        console.close()


@pytest.mark.nightly
def test_a_page_says_that_the_console_does_not_answer(
    console: ConsolePage, queue: QueueManager[AnyMessage]
) -> None:
    page = console.open("/")
    expect(page.locator("#stream")).to_have_text("Live", timeout=10_000)
    queue.push(AnyMessage(id="a"))
    ready = page.locator('#queue-work-db-enrich [data-label="Ready"]')
    expect(ready.locator("a")).to_have_text("1", timeout=10_000)
    console.page.route("**/*", lambda route: route.abort())
    expect(page.locator("#stream")).to_have_text("The console does not answer", timeout=10_000)
    expect(page.locator("#live")).to_have_class("stale")
    console.page.unroute_all()
    expect(page.locator("#stream")).to_have_text("Live", timeout=20_000)
    expect(page.locator("#live")).not_to_have_class("stale")
