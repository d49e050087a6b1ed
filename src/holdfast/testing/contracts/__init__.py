"""Contract suites for your own adapters: what every queue and every store must do.

    from holdfast.testing.contracts import QueueContract

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def make_queue(self, clock): ...

They need pytest, and the stores' suites hypothesis too. Loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.contracts.conversations.contract import ConversationStoreContract
    from holdfast.testing.contracts.jobs.contract import JobStoreContract
    from holdfast.testing.contracts.queue.contract import QueueContract

_HOME = {
    "ConversationStoreContract": "conversations.contract",
    "JobStoreContract": "jobs.contract",
    "QueueContract": "queue.contract",
}

__all__ = ["ConversationStoreContract", "JobStoreContract", "QueueContract"]  # see below


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
