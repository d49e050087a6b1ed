"""Enrichment: a scraper pushes prospects, and workers read their websites.

    cd examples
    python enrichment.py 20                                   # push twenty
    holdfast work acme/enrich enrichment:enrich --isolation process --stall 30s
    holdfast status acme/enrich

On another queue, set HOLDFAST_QUEUE, for example to sqs:enrich, and leave acme/enrich out.

Kill the worker while it works and start it again: each task continues at the page where it
stopped, and each result is written once.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from holdfast import Context, EnrichmentMessage, QueueManager, Reject, Retry, open_queue

QUEUE = os.environ.get("HOLDFAST_QUEUE") or "acme/enrich"
RESULTS = Path(os.environ.get("ENRICHMENT_RESULTS", "data/enriched"))
PAGES = ("/", "/about", "/team", "/contact")


class EnrichmentTask(EnrichmentMessage):
    """A prospect to enrich, with a slug that may name a file."""

    company_slug: str = Field(pattern=r"^[a-z0-9-]{1,64}$")


def produce(queue: QueueManager[EnrichmentTask], slugs: Iterable[str]) -> list[str]:
    """Push a task for each prospect, as the scraper does, and return the ids."""
    return queue.push_many(
        EnrichmentTask(
            id=f"acme-{slug}", domain=f"{slug}.example", company_slug=slug, campaign_name="acme"
        )
        for slug in slugs
    )


def enrich(task: EnrichmentTask, ctx: Context) -> Retry | Reject | None:
    """Read each page, and keep the results in a checkpoint for the next attempt."""
    if "." not in task.domain:
        return Reject(f"{task.domain!r} is not a domain")
    words: dict[str, int] = ctx.checkpoint or {}
    for page in PAGES:
        if page in words:
            continue  # an earlier attempt has read it
        if ctx.stopping.is_set():
            return Retry(after_seconds=0, reason="the worker is stopping")
        words[page] = count_words(task.domain, page)
        ctx.beat(progress=len(words) / len(PAGES), checkpoint=words)
    ctx.raise_if_lost()
    save(task, words, ctx.fence)
    return None


def count_words(domain: str, page: str) -> int:
    """Return the number of words of a page. This stands for a request."""
    time.sleep(0.2)
    return sum(ord(c) for c in domain + page) % 900 + 100


def save(task: EnrichmentTask, words: dict[str, int], fence: int) -> None:
    """Write the result completely or not at all, under the task's name.

    So repeating it after a crash replaces the file by the same. The fence shows which attempt
    wrote it.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"{task.company_slug}.json"
    temporary = target.with_suffix(f".{fence}.tmp")
    temporary.write_text(json.dumps({"domain": task.domain, "pages": words, "fence": fence}))
    temporary.replace(target)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with open_queue(QUEUE, EnrichmentTask) as queue:
        ids = produce(queue, (f"company-{number:03}" for number in range(count)))
    print(f"pushed {len(ids)} tasks; now: holdfast work {QUEUE} enrichment:enrich")
