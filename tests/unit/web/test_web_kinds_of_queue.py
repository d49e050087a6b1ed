"""The console on queues that can tell less, and on a file queue."""

import re
from pathlib import Path
from threading import Event

from holdfast import AnyMessage, SQSQueue, open_queue
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueManager
from holdfast.testing import ManualClock, MemoryQueue, SimulatedSqs
from support.waiting import wait_until
from support.web.pages import open_console, read_page


def fail_two(queue: QueueManager[AnyMessage]) -> None:
    queue.push_many([AnyMessage(id="a"), AnyMessage(id="b"), AnyMessage(id="c")])
    failed = 0
    while failed < 2:
        for message in queue.poll():
            queue.dead_letter(message, "no answer")
            failed += 1


def test_on_sqs_it_shows_counts_and_dead_letters_and_says_what_is_missing() -> None:
    clock = ManualClock()
    sqs = SimulatedSqs(clock).client()
    sqs.create_queue(QueueName="enrich")
    queue: SQSQueue[AnyMessage] = SQSQueue("enrich", client=sqs, clock=clock)
    fail_two(queue)
    client = open_console(queue)
    page = read_page(client, "/queues/sqs-enrich")
    assert "This kind of queue does not tell which workers poll it" in page
    assert "does not list leased messages" in page
    assert "does not know its workers" in page
    assert "this queue does not count them" in page
    assert "no worker is polling" not in page
    dead = client.get("/queues/sqs-enrich/dead").text
    assert dead.count("no answer") >= 2
    assert "cannot be listed" in client.get("/queues/sqs-enrich/messages?state=pending").text


def test_a_memory_queue_can_be_watched() -> None:
    queue: MemoryQueue[AnyMessage] = MemoryQueue(name="memory")
    fail_two(queue)
    client = open_console(queue)
    assert client.get("/").status_code == 200
    assert "no answer" in client.get("/queues/memory/dead").text
    assert client.get("/queues/memory/message?id=c").status_code == 200


def test_a_file_queue_shows_its_leases_and_workers(tmp_path: Path) -> None:
    with open_queue(f"{tmp_path}/acme/enrich") as queue:
        fail_two(queue)
        [message] = queue.poll()
        queue.save_checkpoint(message, {"page": 7})
        client = open_console(queue, allow_actions=True)
        page = read_page(client, "/queues/acme-enrich")
        assert 'id="lease-' in page
        assert "holds 1" in page
        message_page = client.get("/queues/acme-enrich/message?id=c&body=1").text
        assert "&#34;page&#34;: 7" in message_page
        dead = "/queues/acme-enrich/dead"
        assert "no answer" in client.get(f"{dead}?field=id%3Da").text
        assert "Choose a" in client.get(f"{dead}?text=ANSWER").text
        assert "Choose a" not in client.get(f"{dead}?text=other").text


def test_the_page_says_since_when_the_depth_is_known() -> None:
    clock = ManualClock()
    queue: MemoryQueue[AnyMessage] = MemoryQueue(name="memory", clock=clock)
    queue.push(AnyMessage(id="a"))
    client = open_console(queue, clock=clock)
    client.get("/queues/memory")
    for _ in range(59):
        clock.advance(60)
        client.get("/queues/memory")
    assert "known for 59 min" in client.get("/queues/memory").text
    clock.advance(120)
    client.get("/queues/memory")
    assert "since this console watches" not in client.get("/queues/memory").text


def test_a_handler_s_progress_is_shown_with_its_lease(tmp_path: Path) -> None:
    with open_queue(f"sqlite:{tmp_path}/q.db") as queue:
        queue.push_many([AnyMessage(id="silent"), AnyMessage(id="beats")])
        silent, beats = queue.poll(2)
        beats.lease.beat(queue.clock.monotonic(), 0.25)
        queue.renew([silent.lease, beats.lease], 60)
        client = open_console(queue)
        page = client.get("/queues/default").text
        assert page.count('<progress max="1" value="0.25"') == 1
        assert "25%" in page
        assert page.count("beat <time") == 1
        assert page.count(">unknown</td>") == 1
        assert "25%" in client.get("/queues/default/message?id=beats").text


class UncountedQueue(MemoryQueue[AnyMessage]):
    """A queue whose counts take longer than a page waits."""

    def __init__(self) -> None:
        super().__init__(name="slow")
        self.may_count = Event()

    def stats(self) -> QueueStats:
        self.may_count.wait(30)
        return super().stats()


def test_dead_letters_that_are_not_counted_yet_are_not_called_new() -> None:
    queue = UncountedQueue()
    fail_two(queue)
    client = open_console(queue)
    try:
        page = client.get("/queues/slow/dead").text
        [seen] = re.findall(r'data-live="\?seen=(\w*)"', page)
        assert seen == "None"  # and not the length of the list
    finally:
        queue.may_count.set()
    wait_until(lambda: '<span class="num">2</span>' in client.get("/queues/slow/dead").text)
    assert "new: show" not in client.get(f"/queues/slow/dead?part=1&seen={seen}").text
    assert "1 new: show" in client.get("/queues/slow/dead?part=1&seen=1").text
