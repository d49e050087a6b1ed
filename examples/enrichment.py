"""Enrichment: a scraper pushes prospects, workers look at their websites.

    cd examples
    python enrichment.py 20                                   # push twenty
    holdfast work acme/enrich enrichment:enrich --isolation process --stall 30s
    holdfast status acme/enrich

Kill the worker while it works and start it again: each task goes on at the page where it
was, and each result is written once.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from holdfast import QueueManager, QueueMessage, Reject, Retry, open_queue
from holdfast.core.worker.context import Context

RESULTS = Path(os.environ.get("ENRICHMENT_RESULTS", "data/enriched"))
PAGES = ("/", "/about", "/team", "/contact")


class EnrichmentTask(QueueMessage):
    """A prospect to look at."""

    domain: str
    company_slug: str = Field(pattern=r"^[a-z0-9-]{1,64}$")  # it names a file
    campaign_name: str


def produce(queue: QueueManager[EnrichmentTask], slugs: Iterable[str]) -> list[str]:
    """What the scraper does when it has found prospects; the ids of the tasks."""
    return queue.push_many(
        EnrichmentTask(
            id=f"acme-{slug}", domain=f"{slug}.example", company_slug=slug, campaign_name="acme"
        )
        for slug in slugs
    )


def enrich(task: EnrichmentTask, ctx: Context) -> Retry | Reject | None:
    """Look at each page, and keep what was found where the next attempt finds it."""
    if "." not in task.domain:
        return Reject(f"{task.domain!r} is no domain")
    found: dict[str, int] = ctx.checkpoint or {}
    for page in PAGES:
        if page in found:
            continue  # an earlier attempt has been here
        if ctx.stopping.is_set():
            return Retry(after_seconds=0, reason="the worker is stopping")
        found[page] = look_at(task.domain, page)
        ctx.beat(progress=len(found) / len(PAGES), checkpoint=found)
    ctx.raise_if_lost()
    save(task, found, ctx.fence)
    return None


def look_at(domain: str, page: str) -> int:
    """Stands for the request and the reading: how many words the page has."""
    time.sleep(0.2)
    return sum(ord(c) for c in domain + page) % 900 + 100


def save(task: EnrichmentTask, found: dict[str, int], fence: int) -> None:
    """Write the result whole or not at all, under a name of the task: repeating it after a
    crash replaces it with the same. The fence tells which attempt wrote it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"{task.company_slug}.json"
    temporary = target.with_suffix(f".{fence}.tmp")
    temporary.write_text(json.dumps({"domain": task.domain, "pages": found, "fence": fence}))
    temporary.replace(target)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with open_queue("acme/enrich", EnrichmentTask) as queue:
        ids = produce(queue, (f"company-{number:03}" for number in range(count)))
    print(f"pushed {len(ids)} tasks; now: holdfast work acme/enrich enrichment:enrich")
