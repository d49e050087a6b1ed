"""Message types that child processes can import."""

from datetime import datetime

from holdfast.core.queue.message import QueueMessage


class Enrich(QueueMessage):
    what: str
    notes: str
    when: datetime
