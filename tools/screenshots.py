"""Write the screenshots of the web console to docs/images, from real queues and workers.

Run by `make screenshots`, for the images of the documentation. With a folder as its argument it
draws every view there, filled and empty, light and dark, wide and narrow.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from holdfast import AnyMessage, open_queue

ROOT = Path(__file__).parents[1]
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
SIZES = {"wide": (1280, 800), "phone": (390, 844)}
HANDLER = """
import time
from holdfast import Reject
def enrich(message, ctx):
    number = int(message.id.rpartition("-")[2])
    if number % 9 == 0:
        return Reject(f"{message.id}.invalid cannot have a website")
    if number % 7 == 0:
        raise TimeoutError(f"{message.id}.example did not answer")
    for step in range(40 if number % 5 == 0 else 1):
        time.sleep(0.5)
        ctx.beat(checkpoint={"page": step + 1})
"""
# The views of the documentation: file name, path, scheme and size.
KEPT = [
    ("web-queues", "/", "light", "wide"),
    ("web-queue-dark", "/queues/enrich-db-enrich", "dark", "wide"),
    ("web-dead", "/queues/enrich-db-enrich/dead", "light", "wide"),
    ("web-phone", "/queues/enrich-db-enrich", "light", "phone"),
]


@contextmanager
def run(*command: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command of holdfast until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *command],
        cwd=cwd,
        stderr=subprocess.PIPE if command[0] == "web" else subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()


def fill(folder: Path) -> list[str]:
    """Make queues with messages in every state, and return their URLs."""
    (folder / "tasks.py").write_text(HANDLER)
    urls = ["sqlite:enrich.db/enrich", "acme/thumbnails", "acme/reports", "acme/missing"]
    with open_queue(f"sqlite:{folder}/enrich.db/enrich") as queue:
        queue.push_many(
            AnyMessage(id=f"company-{n}", domain=f"company-{n}.example") for n in range(1, 400)
        )
        queue.push(AnyMessage(id="later"), delay_seconds=3600)
    with open_queue(f"{folder}/data/acme/thumbnails") as queue:
        queue.push_many(AnyMessage(id=f"image-{n}") for n in range(1, 25))
    with open_queue(f"{folder}/data/acme/reports"):
        pass
    return urls


def draw(browser: Browser, address: str, target: Path, scheme: str, size: str) -> None:
    """Write one screenshot."""
    width, height = SIZES[size]
    page = browser.new_page(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
    )
    page.goto(address)
    page.wait_for_timeout(1500)
    page.screenshot(path=target, full_page=size == "phone")
    page.close()
    shrink(target)


def shrink(path: Path) -> None:
    """Reduce the colours of an image, which has few."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


def main() -> None:
    """Write the screenshots of the documentation, or all of them to a folder."""
    everything = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        urls = fill(folder)
        work = ["--concurrency=3", "--lease=20", "--max-attempts=2"]
        with (
            run("work", urls[0], "tasks:enrich", *work, cwd=folder),
            run("work", urls[0], "tasks:enrich", *work, cwd=folder) as victim,
            run("web", *urls, "--port=0", "--allow-actions", cwd=folder) as console,
        ):
            assert console.stderr is not None
            address = console.stderr.readline().split()[4].rstrip("/")
            time.sleep(30)
            victim.kill()
            time.sleep(12)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            if everything is None:
                IMAGES.mkdir(exist_ok=True)
                for target, path, scheme, size in KEPT:
                    draw(browser, address + path, IMAGES / f"{target}.png", scheme, size)
            else:
                draw_everything(browser, address, everything)
            browser.close()


def draw_everything(browser: Browser, address: str, folder: Path) -> None:
    """Draw every view in both schemes and both sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    filled = "/queues/enrich-db-enrich"
    views = {
        "queues": "/",
        "queue": filled,
        "queue-empty": "/queues/acme-reports",
        "queue-error": "/queues/acme-missing",
        "messages": f"{filled}/messages?state=leased",
        "message": f"{filled}/message?id=company-7&body=1",
        "dead": f"{filled}/dead",
        "dead-empty": "/queues/acme-reports/dead",
        "not-found": "/queues/none",
    }
    for name, path in views.items():
        for scheme in ("light", "dark"):
            for size in SIZES:
                draw(
                    browser,
                    address + path,
                    folder / f"{name}-{scheme}-{size}.png",
                    scheme,
                    size,
                )


if __name__ == "__main__":
    main()
