"""Message types that child processes can import."""

from dataclasses import dataclass
from datetime import datetime

from holdfast.queue.message import QueueMessage


class Enrich(QueueMessage):
    what: str
    notes: str
    when: datetime


@dataclass
class Parcel:
    note: str
    weight: int
