"""The policy of conversations: waits, limits, and what follows an unclear send."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from holdfast.errors import ConfigError

DAY = 86_400.0
Doubt = Literal["if_missing", "at_most_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class ConversationPolicy:
    """The waits and limits of a conversation.

    window_seconds      how long the first message of a batch waits for others
    quiet_seconds       if a message came less than this ago, wait for more of them …
    max_wait_seconds    … but no longer than this after the first message
    lock_seconds        the lock's lease, which is renewed while the batch is answered
    in_doubt            what to do if it is unknown whether a reply was sent:
                        if_missing     send it again if the provider reports for a while that
                                       it does not have it; park it if that stays unknown
                        at_most_once   park it, unless the provider has it
                        at_least_once  send it again, unless the provider has it
    writer_seconds      the timeout of a call to the writer
    sender_seconds      the timeout of a call to the sender
    stage_seconds       how long staged rows are kept; longer than any queue keeps triggers
    remember_seconds    how long a processed message is recognised if it arrives again
    grace_seconds       how long after its time a trigger counts as lost
    park_after_seconds  messages that could not be answered for this long are parked
    most_fragments      the maximum of messages in a batch, because one write must hold it;
                        the others are answered in later turns
    """

    window_seconds: float = 10.0
    quiet_seconds: float = 2.0
    max_wait_seconds: float = 30.0
    lock_seconds: float = 60.0
    in_doubt: Doubt = "if_missing"
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

    @property
    def look_up_delays(self) -> tuple[float, ...]:
        """Return the waits before each look-up of an unclear send, 30 s in all.

        They take at most half of `writer_seconds`, which an attempt that resumes with a
        look-up has to spare because it does not ask the writer.
        """
        unit_seconds = min(1.0, self.writer_seconds / 60)
        return tuple(factor * unit_seconds for factor in (1, 2, 4, 8, 15))

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
                self.in_doubt not in get_args(Doubt),
                f"in_doubt must be one of {', '.join(get_args(Doubt))}",
            ),
            (not self.writer_seconds > 0, "writer_seconds must be above 0"),
            (not self.sender_seconds > 0, "sender_seconds must be above 0"),
            (
                self.stage_seconds < 14 * DAY,
                "stage_seconds must be 14 days or more: a queue may keep a trigger so long",
            ),
            (
                not 0 < self.park_after_seconds < self.stage_seconds,
                "park_after_seconds must be below stage_seconds, or messages expire unanswered",
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
    """The configuration that a new conversation starts with."""

    channel_config: dict[str, Any] = field(default_factory=dict)
    ai_config: dict[str, Any] = field(default_factory=dict)
