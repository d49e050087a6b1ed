"""The contract suite for your own queue: what every queue must do.

    from holdfast.testing.contracts import QueueContract

    class TestMyQueue(QueueContract):
        @pytest.fixture
        def make_queue(self, clock): ...

It needs pytest. Loaded on first use.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.testing.contracts.queue.contract import QueueContract as QueueContract

__all__, __getattr__ = lazy_exports(
    __name__,
    {"testing.contracts.queue.contract": "QueueContract"},
)
