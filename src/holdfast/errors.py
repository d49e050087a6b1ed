"""The errors that Holdfast raises. Each text says what failed and what to do."""

import sys

# The distribution `holdfast` on the package index is another project, with a package of the
# same name. Installing it over this one replaces `holdfast/__init__.py`, and removing it
# deletes that file. All of Holdfast imports this module, so the cause is named here.
if "open_queue" not in getattr(sys.modules["holdfast"], "__all__", ()):
    raise ImportError(
        "another project's package `holdfast` replaced files of Holdfast, whose distribution "
        "is `holdfast-queue`: run `pip uninstall -y holdfast holdfast-queue`, then "
        "`pip install .` in a clone of Holdfast"
    )


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose. Its text is one line."""


class NotLeased(HoldfastError):
    """The message did not come from `poll`, or was already settled in another way."""


class LeaseLost(HoldfastError):
    """The lease is lost: refused by the queue, taken over, or past its deadline."""


class MessageTooLarge(HoldfastError):
    """The message is larger than the queue accepts."""


class InvalidInput(HoldfastError):
    """What was given cannot be stored or done, so trying again cannot help."""


class MalformedMessage(HoldfastError):
    """The stored bytes are not a message of the expected model.

    `message_id` is the id they contain, if one could be read.
    """

    message_id: str | None = None


class NewerSchema(HoldfastError):
    """The message was written by newer code than this, so it waits for newer workers."""

    def __init__(self, problem: str, version: int, message_id: str | None) -> None:
        super().__init__(f"{problem}: run newer workers; the message waits")
        self.version = version
        self.message_id = message_id


class InvalidName(HoldfastError):
    """A queue name, campaign or id cannot be used."""


class QueueUnavailable(HoldfastError):
    """The queue cannot be reached or written right now. Nothing was changed."""


class QueueNotFound(QueueUnavailable):
    """The queue does not exist yet. Nothing was changed."""


class StoreUnavailable(HoldfastError):
    """The store of jobs or conversations did not respond.

    It is unknown whether the requested write was done. Every write to the store can be
    repeated safely.
    """


class Unsupported(HoldfastError):
    """This kind of queue cannot do that. `capabilities` lists what it can do."""


class ConfigError(HoldfastError):
    """A setting is missing or wrong."""


class HandlerNotFound(HoldfastError):
    """`MODULE:HANDLER` does not name a callable, or a child process cannot import it."""


class AttemptFailed(HoldfastError):
    """Stands for the end of an attempt whose exception is not at hand.

    A handler in a child process raised it, or Holdfast ended the attempt, because the work
    stalled, took too long or its process died. `detail` is the traceback or the stacks, if
    there are any. It is also a note, so the exception is shown with it.
    """

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail
        if detail is not None:
            self.add_note(detail)
