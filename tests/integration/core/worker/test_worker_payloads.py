"""A payload of one's own reaches a handler in a child process as an object of its class."""

from pathlib import Path

from holdfast import Message, Worker, open_queue
from support.workers.messages import Parcel


def deliver(message: Message[Parcel]) -> None:
    parcel = message.payload
    assert type(parcel) is Parcel
    Path(parcel.note).write_text(f"{message.id} {parcel.weight}")


def test_a_payload_reaches_a_child_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with open_queue(f"sqlite:{tmp_path}/work.db", Parcel, env={}) as queue:
        queue.push(Message(payload=Parcel(str(note), 3), id="acme-42"))
        report = Worker(queue, deliver, isolation="process").run(until_empty=True)
    assert report.completed == 1
    assert note.read_text() == "acme-42 3"
