"""The customer of the chat scenario, the messages, and the settings."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.conversations.messages import Inbound
from holdfast.conversations.model import ConversationKey

NAME = "ada"
KEY = ConversationKey(f"whatsapp:{NAME}", "demo")
LOCK_SECONDS = 3.0
WINDOW_SECONDS = 1.2
EFFECTS_FILE = "chat-effects.jsonl"


@dataclass(frozen=True, slots=True)
class CustomerMessage:
    """One message of the customer.

    No text is part of another, because the replies are searched for the texts.
    """

    sid: str
    text: str

    def make_inbound(self) -> Inbound:
        """Return a new inbound message, as the provider's webhook delivers it."""
        return Inbound(
            message_sid=self.sid,
            primary_channel=KEY.primary_channel,
            conversation_id=KEY.conversation_id,
            body=self.text,
        )


QUICK = (
    CustomerMessage("wa-1", "Hi there!"),
    CustomerMessage("wa-2", "I ordered the blue lamp."),
    CustomerMessage("wa-3", "When does it come?"),
)
LATE = CustomerMessage("wa-4", "And do you have it in red?")
BATCHES = 2  # the quick messages, and the late one alone


def make_environment(folder: Path) -> dict[str, str]:
    """Return the settings of conversations for the demo and its workers."""
    return {
        "HOLDFAST_DATA_DIR": str(folder),
        "HOLDFAST_LEASE_SECONDS": f"{LOCK_SECONDS}",
        "HOLDFAST_CHAT_WINDOW_SECONDS": f"{WINDOW_SECONDS}",
        "HOLDFAST_CHAT_QUIET_SECONDS": "0.5",
        "HOLDFAST_CHAT_LOCK_SECONDS": f"{LOCK_SECONDS}",
    }
