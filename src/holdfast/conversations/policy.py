"""How conversations are held: waits, limits, and what is done in doubt."""

from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.core.errors import ConfigError

DAY = 86_400.0
Doubt = Literal["at_most_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class ConversationPolicy:
    """
    window_seconds      the first message of a batch waits so long for others
    quiet_seconds       the customer was still typing less than this ago: wait on …
    max_wait_seconds    … but no longer than this after the first message
    lock_seconds        the lock's lease; renewed while the batch is worked on
    in_doubt            a reply that may or may not be out, and the provider cannot say:
                        park it for a person, or send it again
    writer_seconds      the longest wait for the writer
    sender_seconds      the longest wait for the sender
    stage_seconds       how long staged rows are kept: longer than any queue keeps triggers
    remember_seconds    how long a processed message is known, should it come again
    grace_seconds       so long after its time a trigger is taken for lost
    park_after_seconds  what could not be answered for so long is parked
    most_fragments      more than this are answered in turns: one write must hold a batch
    """

    window_seconds: float = 10.0
    quiet_seconds: float = 2.0
    max_wait_seconds: float = 30.0
    lock_seconds: float = 60.0
    in_doubt: Doubt = "at_most_once"
    writer_seconds: float = 60.0
    sender_seconds: float = 15.0
    stage_seconds: float = 21 * DAY
    remember_seconds: float = 30 * DAY
    grace_seconds: float = 60.0
    park_after_seconds: float = 3 * DAY
    most_fragments: int = 40

    def __post_init__(self) -> None:
        problems = [text for wrong, text in self._checks() if wrong]
        if problems:
            raise ConfigError("; ".join(problems))

    def _checks(self) -> list[tuple[bool, str]]:
        return [
            (
                not 0 <= self.window_seconds <= 900,
                "window_seconds must be between 0 and 900: SQS delays no message longer",
            ),
            (self.quiet_seconds < 0, "quiet_seconds must be 0 or more"),
            (
                not self.window_seconds <= self.max_wait_seconds <= 900,
                "max_wait_seconds must be between window_seconds and 900",
            ),
            (not self.lock_seconds > 0, "lock_seconds must be above 0"),
            (
                self.in_doubt not in ("at_most_once", "at_least_once"),
                "in_doubt is at_most_once or at_least_once",
            ),
            (not self.writer_seconds > 0, "writer_seconds must be above 0"),
            (not self.sender_seconds > 0, "sender_seconds must be above 0"),
            (
                self.stage_seconds < 14 * DAY,
                "stage_seconds must be 14 days or more: a queue can keep a trigger so long",
            ),
            (
                not 0 < self.park_after_seconds < self.stage_seconds,
                "park_after_seconds must be below stage_seconds, or messages are forgotten",
            ),
            (
                self.remember_seconds < self.stage_seconds,
                "remember_seconds must not be below stage_seconds",
            ),
            (not self.grace_seconds > 0, "grace_seconds must be above 0"),
            (not 1 <= self.most_fragments <= 40, "most_fragments must be between 1 and 40"),
        ]


@dataclass(frozen=True, slots=True)
class ConversationProfile:
    """What a new conversation begins with, by the address the customer wrote to."""

    channel_config: dict[str, Any] = field(default_factory=dict)
    ai_config: dict[str, Any] = field(default_factory=dict)
