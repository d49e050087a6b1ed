"""Contract suites for your own adapters: what every queue and every store must do.

    from holdfast.testing.contracts import QueueContract

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def make_queue(self, clock): ...

They need pytest, and the stores' suites hypothesis too. Loaded on first use.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.testing.contracts.conversations.contract import (
        ConversationStoreContract as ConversationStoreContract,
    )
    from holdfast.testing.contracts.jobs.contract import JobStoreContract as JobStoreContract
    from holdfast.testing.contracts.queue.contract import QueueContract as QueueContract

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "testing.contracts.conversations.contract": "ConversationStoreContract",
        "testing.contracts.jobs.contract": "JobStoreContract",
        "testing.contracts.queue.contract": "QueueContract",
    },
)
