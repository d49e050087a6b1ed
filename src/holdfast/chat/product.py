"""What conversations add to the frames."""

from holdfast.products import Product

PRODUCT = Product(
    group="chat",
    help="Answer customers' messages in batches: each batch once, by a writer or a person.",
    panel="Chat",
    commands={
        "send": ("holdfast.chat.commands.conversations:send", "Work"),
        "work": ("holdfast.chat.commands.work:work", "Work"),
        "show": ("holdfast.chat.commands.conversations:show", "Inspect"),
        "outbox": ("holdfast.chat.commands.conversations:outbox", "Inspect"),
        "parked": ("holdfast.chat.commands.maintenance:parked", "Operate"),
        "assign": ("holdfast.chat.commands.maintenance:assign", "Operate"),
        "sweep": ("holdfast.chat.commands.maintenance:sweep", "Maintain"),
        "tables": ("holdfast.chat.commands.maintenance:tables", "Maintain"),
        "doctor": ("holdfast.chat.commands.maintenance:doctor", "Maintain"),
    },
    settings=("holdfast.chat.settings:ChatSettings",),
    store="chat",
    store_kind="holdfast.chat.checks:CONVERSATION_STORE",
    checks={"chat": "holdfast.chat.checks:examine_conversations"},
    pages="holdfast.chat.pages:ConversationPages",
    metrics="holdfast.chat.metrics:METRICS",
)
