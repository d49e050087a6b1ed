"""The metrics of conversations."""

from holdfast.chat import events as ev
from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Read, Reading

_WRITER_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


def _count_new(event: ev.FragmentStaged) -> Reading | None:
    return ((event.channel,), 1.0) if event.new else None


def _count_signed(event: ev.WebhookRefused) -> Reading | None:
    # Scanners find every public URL, and their requests are no reason for an alarm.
    return None if event.reason == "unsigned" else ((), 1.0)


def _count_tokens(kind: str) -> Read:
    return lambda event: ((kind,), getattr(event, f"{kind}_tokens"))


METRICS = (
    Counter(
        "chat.staged",
        "Inbound messages staged, once each.",
        (ev.FragmentStaged, _count_new),
        labels=("channel",),
    ),
    Counter("chat.refused", "Inbound messages that could not be answered.", ev.InboundRefused),
    # The first two have no label, because an alarm needs the value of every label.
    Counter(
        "chat.webhooks_refused",
        "Requests with a signature that the webhook refused.",
        (ev.WebhookRefused, _count_signed),
    ),
    Counter(
        "chat.webhooks_failed", "Requests that the webhook answered 503.", ev.WebhookFailed
    ),
    Counter(
        "chat.webhook_problems",
        "Requests that the webhook refused or answered 503, by reason.",
        ev.WebhookRefused,
        ev.WebhookFailed,
        labels=("reason",),
    ),
    Counter(
        "chat.prolonged",
        "Windows kept open because the customer was typing.",
        ev.WindowProlonged,
    ),
    Counter("chat.busy", "Triggers of a conversation that is being answered.", ev.LockBusy),
    Counter(
        "chat.taken_over", "Expired locks taken over from another worker.", ev.LockTakenOver
    ),
    Counter("chat.turns", "Batches answered, with reply and history written.", ev.TurnFinished),
    Counter("chat.retries", "Batches that will be tried again.", ev.BatchFailed),
    Counter("chat.parked", "Batches parked for an operator.", ev.BatchParked),
    Counter(
        "chat.in_doubt",
        "Replies of which it was unknown whether they were sent, by outcome.",
        ev.SendInDoubt,
        labels=("outcome",),
    ),
    Counter(
        "chat.unrecorded",
        "Replies sent whose history could not be written.",
        ev.SentNotRecorded,
    ),
    Counter(
        "chat.tokens",
        "Tokens used for replies.",
        (ev.ReplyWritten, _count_tokens("prompt")),
        (ev.ReplyWritten, _count_tokens("completion")),
        labels=("kind",),
    ),
    Histogram(
        "chat.writer_seconds",
        "Duration of writing replies.",
        (ev.ReplyWritten, "seconds"),
        buckets=_WRITER_SECONDS,
    ),
    Gauge(
        "chat.waiting",
        "Conversations with staged messages.",
        (ev.SweepFinished, "waiting"),
        unit="{conversation}",
    ),
    Gauge(
        "chat.oldest_seconds",
        "Age of the oldest of them.",
        (ev.SweepFinished, "oldest_seconds"),
    ),
)
