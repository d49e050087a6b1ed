"""The workers of `holdfast chat work`: an error of one ends all of them."""

from pathlib import Path
from threading import Thread

import pytest

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.commands.work import ChatWorkers
from holdfast.chat.model import Channel
from holdfast.cli.live_view import EventCounts
from holdfast.events import Events
from holdfast.worker.worker import Worker

_MAX_SECONDS = 20.0


@pytest.fixture
def app(tmp_path: Path):
    env = {"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_CHAT_WHATSAPP_QUEUE": "memory:"}
    with build_chat(env) as app:
        yield app


def make_worker(app: ChatApp) -> Worker:
    return Worker(app.queues[Channel.WHATSAPP], app.processor, keeper=app.keeper)


def run_to_the_end(app: ChatApp, workers: list[Worker], watched: list) -> list:
    """Return the report or the error of a run, or fail if the run does not end."""
    chat = ChatWorkers(app, workers, watched, EventCounts(), Events())
    ends = []

    def run() -> None:
        try:
            ends.append(chat.run())
        except Exception as error:
            ends.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(_MAX_SECONDS)
    is_over = not thread.is_alive()
    chat.stop_now()
    thread.join(_MAX_SECONDS)
    assert is_over, "the run did not end by itself"
    return ends


def test_an_error_of_one_worker_ends_the_others_and_is_raised(app: ChatApp) -> None:
    worker = make_worker(app)
    # A worker cannot run twice at the same time, so one of its two runs fails.
    [end] = run_to_the_end(app, [worker, worker], [])
    assert isinstance(end, RuntimeError)
    assert "running already" in str(end)


def test_workers_end_when_their_queues_are_empty_and_the_reports_are_summed(
    app: ChatApp,
) -> None:
    queue = app.queues[Channel.WHATSAPP]
    [end] = run_to_the_end(app, [make_worker(app), make_worker(app)], [queue])
    assert (end.completed, end.retried, end.dead_lettered) == (0, 0, 0)
