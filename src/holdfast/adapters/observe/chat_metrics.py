"""Events of conversations as Prometheus metrics."""

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.conversations import events as cv
from holdfast.core.events import Event

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_COUNTED: dict[type[Event], tuple[str, str]] = {
    cv.InboundRefused: ("chat_refused", "Inbound messages that could not be answered."),
    cv.WindowProlonged: (
        "chat_prolonged",
        "Windows kept open because the customer was typing.",
    ),
    cv.LockBusy: ("chat_busy", "Triggers of a conversation that is being answered."),
    cv.LockTakenOver: ("chat_taken_over", "Expired locks taken over from another worker."),
    cv.TurnFinished: ("chat_turns", "Batches answered, with reply and history written."),
    cv.BatchFailed: ("chat_retries", "Batches that will be tried again."),
    cv.BatchParked: ("chat_parked", "Batches parked for an operator."),
    cv.SentNotRecorded: ("chat_unrecorded", "Replies sent whose history could not be written."),
}
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


class ChatMetrics:
    """A subscriber that counts events of conversations."""

    def __init__(self, client: ModuleType, registry: "CollectorRegistry") -> None:
        self._counters = {
            kind: client.Counter(f"holdfast_{name}", text, registry=registry)
            for kind, (name, text) in _COUNTED.items()
        }

        counter = partial(client.Counter, registry=registry)
        self._staged = counter(
            "holdfast_chat_staged", "Inbound messages staged, once each.", ["channel"]
        )
        self._unknown_sends = counter(
            "holdfast_chat_in_doubt",
            "Replies of which it was unknown whether they were sent, by outcome.",
            ["outcome"],
        )
        self._tokens = counter("holdfast_chat_tokens", "Tokens used for replies.", ["kind"])
        self._seconds = client.Histogram(
            "holdfast_chat_writer_seconds",
            "Duration of writing replies.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._waiting = client.Gauge(
            "holdfast_chat_waiting", "Conversations with staged messages.", registry=registry
        )
        self._oldest = client.Gauge(
            "holdfast_chat_oldest_seconds", "Age of the oldest of them.", registry=registry
        )

    def __call__(self, event: Event) -> None:
        if (counter := self._counters.get(type(event))) is not None:
            counter.inc()
        match event:
            case cv.FragmentStaged(channel=channel, new=True):
                self._staged.labels(channel).inc()
            case cv.SendInDoubt(outcome=outcome):
                self._unknown_sends.labels(outcome).inc()
            case cv.ReplyWritten(seconds=seconds):
                self._tokens.labels("prompt").inc(event.prompt_tokens)
                self._tokens.labels("completion").inc(event.completion_tokens)
                self._seconds.observe(seconds)
            case cv.SweepFinished(waiting=waiting, oldest_seconds=oldest):
                self._waiting.set(waiting)
                self._oldest.set(oldest)
