"""Handlers beat, and another process can read when they did and how far they are."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import AnyMessage, open_queue
from holdfast.queue.info import Holder, MessageState
from holdfast.queue.manager import QueueManager
from holdfast.worker.worker import Worker
from support.workers import handlers
from support.workers.notes import Notes, eventually
from support.workers.running import running


def find_beat(viewer: QueueManager[Any]) -> Holder | None:
    holders = [message.holder for message in viewer.browse(MessageState.LEASED).messages]
    return next((holder for holder in holders if holder and holder.beat_at), None)


@pytest.mark.parametrize(
    ("isolation", "url"), [("thread", "sqlite:{}/q.db"), ("process", "{}/acme/enrich")]
)
def test_another_connection_sees_the_progress_of_a_handler(
    tmp_path: Path, isolation: Any, url: str
) -> None:
    address, notes = url.format(tmp_path), Notes(tmp_path / "notes")
    with open_queue(address, lease_seconds=0.9) as queue, open_queue(address) as viewer:
        queue.push(AnyMessage(id="m", what="beat_on", notes=str(notes.path), seconds=30))
        worker: Worker[Any] = Worker(queue, handlers.do, isolation=isolation)
        with running(worker):
            eventually(lambda: find_beat(viewer) is not None)
            holder = find_beat(viewer)
        assert holder is not None
        assert holder.progress == 0.5
