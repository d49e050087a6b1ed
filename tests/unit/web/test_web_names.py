"""How pages name queues, and in which order they list workers."""

from datetime import UTC, datetime, timedelta

import pytest
from jinja2 import Environment

from holdfast.queue.info import QueueWorker
from holdfast.queue.watch import LiveLeases, QueueView
from holdfast.web import web_app
from holdfast.web.rendering import Renderer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def templates() -> Environment:
    console = web_app([]).state.console
    return Renderer(console).env


@pytest.mark.parametrize(
    ("url", "place", "short"),
    [
        ("enrich", "", "enrich"),
        ("acme/enrich", "", "acme/enrich"),
        ("./work/acme/enrich", "./work", "acme/enrich"),
        ("sqlite:work.db/enrich", "sqlite:work.db", "enrich"),
        ("sqlite:/srv/work.db/acme/enrich", "sqlite:/srv/work.db", "acme/enrich"),
        ("sqs:enrich", "", "sqs:enrich"),
        ("https://sqs.eu/123456/enrich", "https://sqs.eu/123456", "enrich"),
        ("/enrich", "", "enrich"),
        ("", "", ""),
    ],
)
def test_a_queue_is_named_by_the_end_of_its_url(
    templates: Environment, url: str, place: str, short: str
) -> None:
    shown = templates.from_string("{{ url|place }} {{ url|short }}").render(url=url)
    assert shown == f"{place} {short}"


def test_workers_keep_their_order_when_one_of_them_polls() -> None:
    def list_workers(*last_seen: float) -> list[str]:
        workers = [
            QueueWorker(f"worker-{number}", "host", number, NOW - timedelta(seconds=ago))
            for number, ago in enumerate(last_seen)
        ]
        workers.sort(key=lambda worker: worker.last_seen or NOW, reverse=True)
        live = LiveLeases(NOW, (), workers)
        return [worker.worker_id for worker in QueueView("q", "q", None, live).workers]

    assert list_workers(5, 1) == list_workers(1, 5) == ["worker-0", "worker-1"]
    assert list_workers(600, 1) == ["worker-1", "worker-0"]  # those that are gone come last
