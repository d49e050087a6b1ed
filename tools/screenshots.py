"""Write screenshots of every view of the web console.

Run by `make screenshots`: filled and empty, light and dark, wide and narrow, to
build/screenshots. Those that the documentation shows are then written to docs/images. With a
word as its argument it writes only the views whose name contains it, and no others.
"""

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from tools.example_console import TOKEN, TRACED, open_example

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "screenshots"
DATA = Path("/tmp/holdfast-example")  # a page shows it
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
KEPT = ["queues", "queue", "message", "dead", "jobs", "conversation"]
KEPT_ON_A_PHONE = "queue-light-phone"
ENRICH = "/queues/enrich-db-enrich"
# The views of a console with messages, jobs and conversations, and those of an empty one.
FILLED = {
    "queues": "/",
    "queue": ENRICH,
    "queue-file": "/queues/acme-thumbnails",
    "queue-sqs": "/queues/sqs-invoices",
    "queue-missing": "/queues/acme-missing",
    "messages": f"{ENRICH}/messages?state=leased",
    "message": f"{ENRICH}/message?id={TRACED}",
    "message-body": f"{ENRICH}/message?id={TRACED}&body=1",
    "dead": f"{ENRICH}/dead",
    "dead-no-match": f"{ENRICH}/dead?text=nothing-has-this",
    "jobs": "/jobs",
    "job": "/jobs/job?id=april-invoices",
    "conversations": "/conversations",
    "parked": "/conversations/parked",
    "not-found": "/queues/none",
}
EMPTY = {
    "queue-empty": "/queues/acme-enrich",
    "messages-empty": "/queues/acme-enrich/messages?state=completed",
    "dead-empty": "/queues/acme-enrich/dead",
    "jobs-empty": "/jobs",
    "conversations-empty": "/conversations",
    "parked-empty": "/conversations/parked",
}


def open_views(page: Page, addresses: dict[str, str], wanted: str) -> Iterator[str]:
    """Open one view after the other, and yield its name."""
    for kind, views in (("filled", FILLED), ("empty", EMPTY)):
        for name in (name for name in views if wanted in name):
            page.goto(addresses[kind] + views[name])
            if name == "message":
                page.locator("summary").first.click()
            yield name
    if wanted in "login":
        page.goto(addresses["login"])
        yield "login"
    if wanted in "conversation-batch-confirm":
        yield from _follow(page, addresses["filled"])


def _follow(page: Page, address: str) -> Iterator[str]:
    """Click through to the views whose addresses are not known."""
    page.goto(f"{address}{ENRICH}/dead")
    page.get_by_role("button", name="Drop all").click()
    yield "confirm"
    page.goto(f"{address}/conversations")
    page.locator("tbody th a").first.click()
    yield "conversation-masked"
    page.get_by_role("link", name="Show").click()
    yield "conversation"
    page.goto(f"{address}/conversations/parked")
    page.locator("tbody th a").first.click()
    yield "batch"
    page.get_by_role("button", name="Drop").click()
    yield "confirm-batch"


def draw(page: Page, name: str) -> None:
    """Write the view that is open in both schemes and both sizes."""
    for size, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.evaluate("document.fonts.ready")
            target = FOLDER / f"{name}-{scheme}-{size}.png"
            page.screenshot(path=target, full_page=True, animations="disabled")


def shrink(source: Path, target: Path) -> None:
    """Write an image with 256 colours."""
    with Image.open(source) as image:
        image.convert("RGB").quantize(256).save(target, optimize=True)


def draw_all(browser: Browser, wanted: str) -> None:
    """Fill the consoles, and draw their views."""
    shutil.rmtree(DATA, ignore_errors=True)
    with (
        open_example(DATA / "filled") as filled,
        open_example(DATA / "empty") as empty,
        open_example(DATA / "login") as locked,
    ):
        addresses = {
            "filled": filled.serve(allow_actions=True),
            "empty": empty.serve_empty(allow_actions=True),
            "login": locked.serve_empty(token=TOKEN),
        }
        page = browser.new_page()
        for view in open_views(page, addresses, wanted):
            page.locator(".loading").first.wait_for(state="detached")
            draw(page, view)
    shutil.rmtree(DATA)


def main() -> None:
    """Draw the views, and write those of the documentation."""
    logging.disable(logging.WARNING)
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        draw_all(browser, wanted)
        browser.close()
    if not wanted:
        kept = [f"{name}-{scheme}-wide" for name in KEPT for scheme in SCHEMES]
        for name in [*kept, KEPT_ON_A_PHONE]:
            target = name.removesuffix("-wide")
            shrink(FOLDER / f"{name}.png", IMAGES / f"web-{target}.png")


if __name__ == "__main__":
    main()
