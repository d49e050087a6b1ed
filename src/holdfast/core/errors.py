"""What can go wrong, in words a person can act on."""


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose. Its text is one clear line."""


class NotLeased(HoldfastError):
    """The message was not obtained from `poll`, or was settled another way already."""


class LeaseLost(HoldfastError):
    """The lease is gone: refused by the queue, taken over, or past its deadline."""


class MessageTooLarge(HoldfastError):
    """The message is larger than the queue takes."""


class MalformedMessage(HoldfastError):
    """The stored bytes are not a message of the expected model.

    `message_id` is the id they hold, where one can be read.
    """

    message_id: str | None = None


class NewerSchema(HoldfastError):
    """The message was written by newer code than this."""

    def __init__(self, version: int, current: int, message_id: str | None) -> None:
        super().__init__(
            f"schema_version {version} is newer than this code's {current}: run newer "
            "workers; the message waits"
        )
        self.version = version
        self.message_id = message_id


class InvalidName(HoldfastError):
    """A queue, campaign or id that cannot be used."""


class QueueUnavailable(HoldfastError):
    """The queue cannot be reached or written right now; nothing was changed."""


class StoreUnavailable(HoldfastError):
    """The store of jobs or conversations did not answer. What was asked may or may not have
    been done; every write to it is safe to ask for again."""


class Unsupported(HoldfastError):
    """This kind of queue cannot do that; `capabilities` says what it can."""


class ConfigError(HoldfastError):
    """A setting is missing or wrong."""


class HandlerNotFound(HoldfastError):
    """`MODULE:HANDLER` does not lead to something that can be called."""
