"""Who writes in the third act, what, and how conversations are held in it."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.conversations.messages import Inbound
from holdfast.conversations.model import ConversationKey

NAME = "ada"
KEY = ConversationKey(f"whatsapp:{NAME}", "demo")
LOCK_SECONDS = 3.0
WINDOW_SECONDS = 1.2


@dataclass(frozen=True, slots=True)
class CustomerLine:
    """One message of hers. No text is part of another: replies are searched for them."""

    sid: str
    text: str

    def inbound(self) -> Inbound:
        """As the provider's webhook brings it; each time anew."""
        return Inbound(
            message_sid=self.sid,
            primary_channel=KEY.primary_channel,
            conversation_id=KEY.conversation_id,
            body=self.text,
        )


QUICK = (
    CustomerLine("wa-1", "Hi there!"),
    CustomerLine("wa-2", "I ordered the blue lamp."),
    CustomerLine("wa-3", "When does it come?"),
)
LATE = CustomerLine("wa-4", "And do you have it in red?")
BATCHES = 2  # the quick ones, and the late one by itself


def environment(folder: Path) -> dict[str, str]:
    """The settings of conversations, for the demo and its workers."""
    return {
        "HOLDFAST_DATA_DIR": str(folder),
        "HOLDFAST_LEASE_SECONDS": f"{LOCK_SECONDS}",
        "HOLDFAST_CHAT_WINDOW_SECONDS": f"{WINDOW_SECONDS}",
        "HOLDFAST_CHAT_QUIET_SECONDS": "0.5",
        "HOLDFAST_CHAT_LOCK_SECONDS": f"{LOCK_SECONDS}",
    }
