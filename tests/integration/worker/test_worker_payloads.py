"""A payload of one's own reaches a handler in a child process as an object of its class."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import HandlerNotFound, Message, Worker, open_queue
from support.workers.handlers import deliver
from support.workers.messages import Parcel


def test_a_payload_reaches_a_child_process(tmp_path: Path) -> None:
    # No annotation names Message[Parcel] in a module that the child could import.
    note = tmp_path / "note"
    with open_queue(f"sqlite:{tmp_path}/work.db", Parcel, env={}) as queue:
        queue.push(Message(payload=Parcel(str(note), 3), id="acme-42"))
        report = Worker(queue, deliver, isolation="process").run(until_empty=True)
    assert report.completed == 1
    assert note.read_text() == "Parcel acme-42 3"


def test_a_payload_that_a_child_cannot_import_ends_the_worker_and_stays(tmp_path: Path) -> None:
    @dataclass
    class LocalParcel:
        note: str

    with open_queue(f"sqlite:{tmp_path}/work.db", LocalParcel, env={}) as queue:
        queue.push(LocalParcel("x"))
        with pytest.raises(HandlerNotFound, match=r"LocalParcel\] cannot reach a process"):
            Worker(queue, deliver, isolation="process").run(until_empty=True)
        assert queue.stats().failed == 0
        assert queue.stats().completed == 0
