"""The payload of all contenders: 300 bytes of JSON.

Holdfast gets it as a typed message, built, serialised, parsed and validated within the
measured time. The peers get the finished JSON, and no time is spent on parsing it for them.
"""

from holdfast.queue.message import QueueMessage

BYTES = 300


class BenchTask(QueueMessage):
    """The message that Holdfast moves."""

    domain: str
    company_slug: str
    campaign_name: str
    priority: int
    note: str


def task(number: int) -> BenchTask:
    """Return a message as a producer builds it. The model fills in id and creation time."""
    return BenchTask(
        domain="example.com",
        company_slug="example-company",
        campaign_name="spring",
        priority=number % 10,
        note=_NOTE,
    )


def body(number: int) -> bytes:
    """Return the payload as bytes, with `number` as its id."""
    return _BEFORE_ID + b"%032x" % number + _AFTER_ID


def number_of(payload: bytes | str) -> str:
    """Return the id in a payload of `body`."""
    text = payload.decode() if isinstance(payload, bytes) else payload
    return text[len(_BEFORE_ID) : len(_BEFORE_ID) + 32]


_NOTE = ""
_NOTE = "n" * (BYTES - len(task(0).model_dump_json()))
_BEFORE_ID = b'{"id":"'
_AFTER_ID = task(0).model_dump_json().encode()[len(_BEFORE_ID) + 32 :]
